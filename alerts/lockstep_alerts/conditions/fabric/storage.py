"""Storage that many nodes share fails or crawls: checkpoints and data of all jobs are behind it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.synthetic import (
    Samples,
    Stretch,
    Timing,
    growing,
    sample_node,
    steady,
)
from lockstep_alerts.reading.quantities import Number, Whole, Window
from lockstep_catalogue import host
from lockstep_catalogue.labels import CLUSTER, FILESYSTEM, NODE, SOURCE, VOLUME
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import Matcher, by, eq, increase, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

# Local disks have the same name on every node, and fail one by one.
_SHARED = one_of(FILESYSTEM, "nfs", "nfs4")
_ON_VOLUME = f"on ({names(CLUSTER, NODE, VOLUME)})"
_SOURCE, _VOLUME = "filer:/checkpoints", "0:52"


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageDegraded(Condition):
    """Shared storage that fails or is slow on ``least_nodes`` nodes or more.

    Attributes:
        window: over which requests are counted.
        above_seconds: mean duration of a request, from which on the volume crawls.
        least_nodes: with trouble on one source, from which on it is the source.
    """

    DETECTED_AFTER: ClassVar[int | str] = "window"

    window: Window
    above_seconds: Annotated[float, Number(0, 3600)]
    least_nodes: Annotated[int, Whole(0, 10_000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of nodes by source that time out, get errors, or wait too long for a request."""
        del windows
        return f"{by('count', self._troubled(), CLUSTER, SOURCE)} >= {self.least_nodes}"

    def _troubled(self, *matchers: Matcher) -> str:
        of_volume = (CLUSTER, NODE, VOLUME)
        spent = by("sum", rate(host.STORAGE_SECONDS, self.window.text), *of_volume)
        requests = by("sum", rate(host.STORAGE_REQUESTS, self.window.text), *of_volume)
        slow = f"{spent} / ({requests} > 0) > {self.above_seconds:g}"
        failing = " or ".join(
            f"{increase(counter, self.window.text)} > 0"
            for counter in (host.STORAGE_TIMEOUTS, host.STORAGE_ERRORS)
        )
        troubled = by("group", f"{slow}\nor\n{failing}", *of_volume)
        info = by("group", select(host.VOLUME_INFO, _SHARED, *matchers), *of_volume, SOURCE)
        return by("group", f"{info} and {_ON_VOLUME} {troubled}", CLUSTER, NODE, SOURCE)

    def evidence(self) -> str:
        """Asks Prometheus which nodes are troubled."""
        matchers = (eq(CLUSTER, "%[1]s"), eq(SOURCE, "%[2]s"))
        return listing(self._troubled(*matchers), "{{ $series.Labels.node }}", CLUSTER, SOURCE)

    def cases(self, timing: Timing) -> list[Case]:
        """Time-outs and slow requests on as many nodes as the limit; on one fewer; at work."""
        source = {"cluster": "c1", "source": _SOURCE}

        def volumes(num_nodes: int, metric: Metric, per_second: float) -> list[Samples]:
            nodes = [f"n{number}" for number in range(1, num_nodes + 1)]
            return [each for node in nodes for each in _volume(timing, node, metric, per_second)]

        crawls = 20 * self.above_seconds  # ten requests a second
        return [
            Case("it times out", volumes(self.least_nodes, host.STORAGE_TIMEOUTS, 1), source),
            Case("it crawls", volumes(self.least_nodes, host.STORAGE_SECONDS, crawls), source),
            Case(
                "it times out on fewer nodes",
                volumes(self.least_nodes - 1, host.STORAGE_TIMEOUTS, 1),
            ),
            Case("it works", volumes(self.least_nodes, host.STORAGE_SECONDS, crawls / 8)),
        ]


def _volume(timing: Timing, node: str, metric: Metric, per_second: float) -> list[Samples]:
    """A volume of a node; from the onset on a counter of it grows."""
    labels = {"volume": _VOLUME}
    lasting = timing.fires_by_seconds
    info = {"filesystem": "nfs4", "source": _SOURCE, "mount_point": "/checkpoints"}
    operation = {} if metric is host.STORAGE_TIMEOUTS else {"operation": "write"}
    grows = growing(
        Stretch(timing.onset_seconds, 0), Stretch(timing.fires_within_seconds, per_second)
    )
    requests = growing(Stretch(lasting, 10))
    return [
        sample_node(host.VOLUME_INFO, steady(1, lasting), node, **labels, **info),
        sample_node(host.STORAGE_REQUESTS, requests, node, **labels, operation="write"),
        sample_node(metric, grows, node, **labels, **operation),
    ]
