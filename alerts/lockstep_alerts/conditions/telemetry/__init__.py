"""Alerts on the monitoring itself."""
