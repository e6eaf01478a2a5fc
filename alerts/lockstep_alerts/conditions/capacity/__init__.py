"""Alerts on slow trouble: waste, contention, queues, recovery points."""
