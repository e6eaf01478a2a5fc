"""Hang detection: by the rank itself, and by the launcher for all ranks of its node."""
