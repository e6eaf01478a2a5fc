"""Spans and structured logs of a job, and their export by a process beside it."""
