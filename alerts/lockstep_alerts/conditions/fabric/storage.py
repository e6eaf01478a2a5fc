"""Storage that many nodes share fails or crawls: checkpoints and data of all jobs are behind it."""

from dataclasses import dataclass
from typing import Annotated

from lockstep_alerts.conditions.condition import Case
from lockstep_alerts.conditions.joins import ON_MACHINE, ran_on
from lockstep_alerts.conditions.synthetic import Samples, Timing, sample_node, trains
from lockstep_alerts.conditions.wide import Wide, on_nodes
from lockstep_alerts.reading.quantities import Window, number
from lockstep_catalogue import host
from lockstep_catalogue.labels import CLUSTER, FILESYSTEM, JOB_ID, NODE, SOURCE, VOLUME
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import by, increase, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

# Local disks have the same name on every node, and fail one by one.
_SHARED = one_of(FILESYSTEM, "nfs", "nfs4")
_ON_VOLUME = f"on ({names(CLUSTER, NODE, VOLUME)})"
_SOURCE, _VOLUME = "filer:/checkpoints", "0:52"


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageDegraded(Wide):
    """Shared storage that fails or is slow on ``least_nodes`` nodes under jobs or more.

    Attributes:
        window: over which requests are counted.
        above_seconds: mean duration of a request, from which on the volume crawls.
    """

    DETECTED_AFTER = "window"
    CAUSE = "storage"
    PLACE = (CLUSTER, SOURCE)

    window: Window
    above_seconds: Annotated[float, number(0, 3600)]

    def hit(self, windows: ScrapeWindows) -> str:
        """Nodes under jobs that time out, get errors, or wait too long for a request, by source."""
        of_volume = (CLUSTER, NODE, VOLUME)
        spent = by("sum", rate(host.STORAGE_SECONDS, self.window.text), *of_volume)
        requests = by("sum", rate(host.STORAGE_REQUESTS, self.window.text), *of_volume)
        slow = f"{spent} / ({requests} > 0) > {self.above_seconds:g}"
        failing = " or ".join(
            f"{increase(counter, self.window.text)} > 0"
            for counter in (host.STORAGE_TIMEOUTS, host.STORAGE_ERRORS)
        )
        troubled = by("group", f"{slow}\nor\n{failing}", *of_volume)
        info = by("group", select(host.VOLUME_INFO, _SHARED), *of_volume, SOURCE)
        sources = by("group", f"{info} and {_ON_VOLUME} {troubled}", CLUSTER, NODE, SOURCE)
        return f"({sources} and {ON_MACHINE} {ran_on(windows)})"

    def explained(self, windows: ScrapeWindows) -> str:
        """Every job on a node that the source troubles, where it troubles enough of them."""
        wide = f"on ({names(*self.PLACE)}) ({self.expression(windows)})"
        jobs = f"{ran_on(windows)} and {ON_MACHINE} ({self.hit(windows)} and {wide})"
        return by("group", jobs, CLUSTER, JOB_ID)

    def cases(self, timing: Timing) -> list[Case]:
        source = {"cluster": "c1", "source": _SOURCE}

        def volumes(num_nodes: int, metric: Metric, per_second: float) -> list[Samples]:
            return on_nodes(num_nodes, lambda node: _volume(timing, node, metric, per_second))

        enough, crawls = self.least_nodes, 20 * self.above_seconds  # ten requests a second
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
