"""The cases that prove the conditions of alerts: a module an area, as the conditions have."""

from . import attempts, capacity, fabric, jobs, nodes, objectives, telemetry

__all__ = ["attempts", "capacity", "fabric", "jobs", "nodes", "objectives", "telemetry"]
