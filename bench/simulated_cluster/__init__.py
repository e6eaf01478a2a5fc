"""A simulated cluster for boards and rules: jobs, faults, agents, the ledger, recorded series.

Its series are built from the catalogue's objects, every metric with the labels and the type that it
is declared with, and sent to a Prometheus by remote write. What the rules record is then computed
by Prometheus itself from the rule files that are shipped, and written back.
"""

from .cluster import Cluster, Job, simulated
from .fill import fill

__all__ = ["Cluster", "Job", "fill", "simulated"]
