"""Writes the rules for other rulers than a Prometheus with rule files."""

from lockstep_alerts.writers.formats import FORMATS, Target, remark_on, render_for

__all__ = ["FORMATS", "Target", "remark_on", "render_for"]
