"""Opens files that others may have put there, and writes files that others read."""
