"""Verdicts on GPUs, ports and the node: readings -> signs -> verdicts, thresholds as arguments."""
