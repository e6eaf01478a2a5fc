from lockstep_alerts.conditions.fabric.storage import StorageDegraded
from lockstep_catalogue import host
from lockstep_catalogue.metric import Metric

from ..case import Case, proves
from ..hardware_series import on_nodes
from ..synthetic import Samples, Timing, sample_node, trains

_SOURCE, _VOLUME = "filer:/checkpoints", "0:52"


@proves(StorageDegraded)
def storage_degraded(condition: StorageDegraded, timing: Timing) -> list[Case]:
    source = {"cluster": "c1", "source": _SOURCE}

    def volumes(num_nodes: int, metric: Metric, per_second: float) -> list[Samples]:
        return on_nodes(num_nodes, lambda node: _volume(timing, node, metric, per_second))

    enough, crawls = condition.least_nodes, 20 * condition.above_seconds  # ten requests a second
    too_few = volumes(enough - 1, host.STORAGE_TIMEOUTS, 1)
    return [
        Case("it times out", volumes(enough, host.STORAGE_TIMEOUTS, 1), source),
        Case("it crawls", volumes(enough, host.STORAGE_SECONDS, crawls), source),
        Case("it times out on fewer nodes", too_few),
        Case("it works", volumes(enough, host.STORAGE_SECONDS, crawls / 8)),
    ]


def _volume(timing: Timing, node: str, metric: Metric, per_second: float) -> list[Samples]:
    """A volume of a node; from the onset on a counter of it grows."""
    labels = {"volume": _VOLUME}
    info = {"filesystem": "nfs4", "source": _SOURCE, "mount_point": "/checkpoints"}
    operation = {} if metric is host.STORAGE_TIMEOUTS else {"operation": "write"}
    requests = timing.counts(10)
    return [
        trains(timing, 1, node),
        sample_node(host.VOLUME_INFO, timing.steady(1), node, **labels, **info),
        sample_node(host.STORAGE_REQUESTS, requests, node, **labels, operation="write"),
        sample_node(metric, timing.grows(per_second), node, **labels, **operation),
    ]
