"""The lines of a kernel log, and the meaning of their messages."""
