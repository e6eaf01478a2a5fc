"""Verdicts: from scores to a rank, a group, the workload, nobody, or unknown."""
