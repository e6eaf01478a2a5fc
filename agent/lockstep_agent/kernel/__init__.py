"""Kernel messages as incidents: what a message means, and which messages belong together."""
