"""Text that people write and read: durations, printable lines, masked secrets."""
