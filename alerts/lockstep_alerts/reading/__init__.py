"""Reads a spec: entries with their lines, types of limits, durations."""
