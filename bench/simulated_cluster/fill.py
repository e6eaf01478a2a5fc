"""Fills a Prometheus with the simulated cluster."""

from collections.abc import Iterable
from itertools import chain

from .cluster import Cluster
from .job_series import job_series
from .ledger_series import ledger_series
from .node_series import node_series
from .remote_write import send
from .rules import Rule, record, shipped_rules


def fill(url: str, cluster: Cluster, rules: Iterable[Rule] | None = None) -> int:
    """Writes everything to a Prometheus that takes remote writes; returns the samples written.

    Args:
        url: its address.
        cluster: the cluster whose series are written.
        rules: what is computed from them; the shipped rules where it is None.
    """
    series = chain(job_series(cluster), node_series(cluster), ledger_series(cluster))
    number = send(url, cluster.times, series)
    return number + record(url, cluster, shipped_rules() if rules is None else rules)
