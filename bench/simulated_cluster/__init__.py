"""A simulated cluster for boards and rules: jobs, faults, agents, the ledger, recorded series.

Its series are built from the catalogue's objects, every metric with the labels and the type that it
is declared with, and sent to a Prometheus by remote write. What the rules record is then computed
by Prometheus itself from the rule files that are shipped, and written back.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from .cluster import Cluster, Job, simulated
from .job_series import job_series
from .ledger_series import ledger_series
from .node_series import node_series
from .remote_write import Samples, send
from .rules import Rule, record, shipped_rules

__all__ = ["Cluster", "Job", "fill", "list_series", "simulated"]


def list_series(cluster: Cluster) -> Iterator[Samples]:
    """All series of a cluster, but what rules record of them."""
    return chain(job_series(cluster), node_series(cluster), ledger_series(cluster))


def fill(url: str, cluster: Cluster, rules: Iterable[Rule] | None = None) -> int:
    """Writes everything to a Prometheus that takes remote writes; returns the samples written.

    Args:
        url: its address.
        cluster: the cluster whose series are written.
        rules: what is computed from them; the shipped rules where it is None.
    """
    number = send(url, cluster.times, list_series(cluster))
    return number + record(url, cluster, shipped_rules() if rules is None else rules)
