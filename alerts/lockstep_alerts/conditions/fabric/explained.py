"""Nodes that fail together, power caps, and the jobs that a wide cause explains."""

from dataclasses import dataclass
from typing import Annotated

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.fabric.ports import FabricDegraded
from lockstep_alerts.conditions.fabric.storage import StorageDegraded
from lockstep_alerts.conditions.gpu_signs import HOLD_SECONDS, JUDGED_EVERY_SECONDS, ON_GPU, judged
from lockstep_alerts.conditions.joins import NODE_LABELS, held_gpus
from lockstep_alerts.conditions.nodes.node_faults import gpu_verdict, jobs_on_failed_nodes
from lockstep_alerts.conditions.nodes.node_lost import jobs_on_lost_nodes
from lockstep_alerts.conditions.synthetic import Samples, Timing, sample_node
from lockstep_alerts.conditions.wide import Wide
from lockstep_alerts.reading.quantities import Number, Whole, Window
from lockstep_catalogue import gpu, incidents, training
from lockstep_catalogue.promql import by, eq
from lockstep_catalogue.windows import ScrapeWindows

_GPU = {"gpu": "3", "uuid": "GPU-3"}
_OWNER = {"pci_bus_id": "0000:3b:00.0", "mig_uuid": "", "job_id": "j1", "rank": "2"}


def _nodes(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesLost(Wide):
    """Clusters in which several nodes under jobs are gone or have failed: a rack, a power feed.

    Attributes:
        window: how long after a fatal Xid its GPU counts as faulty.
    """

    CAUSE = "nodes"

    window: Window

    def hit(self, windows: ScrapeWindows) -> str:
        """Jobs on nodes that are gone or have failed."""
        failed = jobs_on_failed_nodes(windows, self.window)
        return f"({failed}\nor\n{jobs_on_lost_nodes(windows)})"

    def cases(self, timing: Timing) -> list[Case]:
        def hung(count: int) -> list[Samples]:
            return [each for node in _nodes(count) for each in _hung(timing, node)]

        return [
            Case("many nodes fail", hung(self.least_nodes), {"cluster": "c1"}),
            Case("one node fewer", hung(self.least_nodes - 1)),
        ]


def _hung(timing: Timing, node: str) -> list[Samples]:
    verdict = {"verdict": "failed", "node_reason": "driver_hung"}
    return [
        sample_node(training.RANKS, timing.steady(1), node, job_id=f"j-{node}", state="training"),
        sample_node(incidents.NODE_HEALTH, timing.appears(), node, **verdict),
    ]


class PowerCapped(Wide):
    """Clusters in which GPUs of jobs on several nodes are held below their power."""

    DETECTED_AFTER = max(HOLD_SECONDS.values()) + JUDGED_EVERY_SECONDS
    CAUSE = "power"

    def hit(self, windows: ScrapeWindows) -> str:
        """Jobs with a GPU that the agent calls capped."""
        capped = judged(eq(incidents.GPU_REASON, "power_capped"))
        return by("group", f"{held_gpus(windows)} and {ON_GPU} {capped}", *NODE_LABELS)

    def cases(self, timing: Timing) -> list[Case]:
        def capped(count: int, reason: str) -> list[Samples]:
            return [
                each
                for node in _nodes(count)
                for each in (
                    sample_node(gpu.GPU_OWNER_INFO, timing.steady(1), node, **_GPU, **_OWNER),
                    gpu_verdict(timing, "degraded", reason, node),
                )
            ]

        return [
            Case(
                "many nodes are capped", capped(self.least_nodes, "power_capped"), {"cluster": "c1"}
            ),
            Case("one node fewer", capped(self.least_nodes - 1, "power_capped")),
            Case("GPUs are hot", capped(self.least_nodes, "thermal")),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained(Condition):
    """The jobs that a wide cause explains: it notifies nobody, and keeps their symptoms quiet.

    Attributes:
        least_nodes, window, above_seconds: as those of the causes.
    """

    least_nodes: Annotated[int, Whole(1, 10_000)]
    window: Window
    above_seconds: Annotated[float, Number(0, 3600)]

    def _causes(self) -> tuple[Wide, ...]:
        least = self.least_nodes
        return (
            NodesLost(least_nodes=least, window=self.window),
            FabricDegraded(least_nodes=least),
            PowerCapped(least_nodes=least),
            StorageDegraded(
                least_nodes=least, window=self.window, above_seconds=self.above_seconds
            ),
        )

    def expression(self, windows: ScrapeWindows) -> str:
        """Jobs by the cause that explains them."""
        return "\nor\n".join(
            f'label_replace({each.explained(windows)}, "cause", "{each.CAUSE}", "", "")'
            for each in self._causes()
        )

    def cases(self, timing: Timing) -> list[Case]:
        enough, fewer = (
            [each for node in _nodes(count) for each in _hung_under_one(timing, node)]
            for count in (self.least_nodes, self.least_nodes - 1)
        )
        explained = {"cluster": "c1", "job_id": "j1", "cause": "nodes"}
        return [Case("nodes fail", enough, explained), Case("one node fewer", fewer)]


def _hung_under_one(timing: Timing, node: str) -> list[Samples]:
    rank, verdict = _hung(timing, node)
    return [
        sample_node(training.RANKS, rank.course, node, job_id="j1", state="training"),
        verdict,
    ]
