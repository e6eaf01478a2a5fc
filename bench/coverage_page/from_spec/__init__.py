"""Writes what alerts/slos.yaml decides outside of alerts/generated."""
