"""Alerts on jobs that run: slow or hung ranks, stages, losses that are not finite."""
