"""Logs of a job: scanned once, bounded, and judged for the outcome and its first cause."""
