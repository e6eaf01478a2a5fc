"""From the kernel log to incidents: what a message means, and which messages are one incident."""
