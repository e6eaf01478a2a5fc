"""Alerts on attempts of jobs: checkpoints, memory, starts, replicas, data."""
