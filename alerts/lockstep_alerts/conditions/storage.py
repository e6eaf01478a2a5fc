"""Storage that many nodes share fails or crawls: checkpoints and data of all jobs are behind it."""

from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Timing
from lockstep_alerts.conditions.immediate import Immediate, Outline, listing, of_node
from lockstep_alerts.entry import Entry
from lockstep_alerts.model import Duration
from lockstep_alerts.synthetic import Samples, Stretch, growing, steady
from lockstep_catalogue import host
from lockstep_catalogue.fabric_labels import FILESYSTEM, SOURCE, VOLUME
from lockstep_catalogue.labels import CLUSTER, NODE
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import Matcher, by, eq, increase, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

# Local disks have the same name on every node, and fail one by one.
_SHARED = one_of(FILESYSTEM, "nfs", "nfs4")
_ON_VOLUME = f"on ({names(CLUSTER, NODE, VOLUME)})"
_SOURCE, _VOLUME = "filer:/checkpoints", "0:52"


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageDegraded(Immediate):
    """Limits of the condition.

    Attributes:
        window: over which requests are counted.
        above_seconds: mean duration of a request, from which on the volume crawls.
        least_nodes: with trouble on one source, from which on it is the source.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("window", "above_seconds", "least_nodes")
    window: Duration
    above_seconds: float
    least_nodes: int

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry."""
        return cls(
            window=entry.window("window"),
            above_seconds=entry.number("above_seconds", 0, 3600),
            least_nodes=round(entry.number("least_nodes", 0, 10_000)),
        )

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

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """The window: a mean must have lost what was before; an error is seen sooner."""
        del windows
        return self.window.seconds

    def evidence(self) -> str:
        """Asks Prometheus which nodes are troubled."""
        matchers = (eq(CLUSTER, "%[1]s"), eq(SOURCE, "%[2]s"))
        return listing(self._troubled(*matchers), "{{ $series.Labels.node }}", CLUSTER, SOURCE)

    def outlines(self, timing: Timing) -> list[Outline]:
        """Time-outs and slow requests on as many nodes as the limit; on one fewer; at work."""
        source = {"cluster": "c1", "source": _SOURCE}

        def volumes(num_nodes: int, metric: Metric, per_second: float) -> list[Samples]:
            nodes = [f"n{number}" for number in range(1, num_nodes + 1)]
            return [each for node in nodes for each in _volume(timing, node, metric, per_second)]

        crawls = 20 * self.above_seconds  # ten requests a second
        return [
            Outline("it times out", volumes(self.least_nodes, host.STORAGE_TIMEOUTS, 1), source),
            Outline("it crawls", volumes(self.least_nodes, host.STORAGE_SECONDS, crawls), source),
            Outline(
                "it times out on fewer nodes",
                volumes(self.least_nodes - 1, host.STORAGE_TIMEOUTS, 1),
            ),
            Outline("it works", volumes(self.least_nodes, host.STORAGE_SECONDS, crawls / 8)),
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
        of_node(host.VOLUME_INFO, steady(1, lasting), node, **labels, **info),
        of_node(host.STORAGE_REQUESTS, requests, node, **labels, operation="write"),
        of_node(metric, grows, node, **labels, **operation),
    ]
