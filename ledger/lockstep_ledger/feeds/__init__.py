"""Feeds: schedulers that are followed without an end."""
