"""Alerts on nodes and GPUs, under jobs and idle."""
