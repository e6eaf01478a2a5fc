"""What a kernel log says: its lines, and the meaning of its messages."""
