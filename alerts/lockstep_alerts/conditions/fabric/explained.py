"""Nodes that fail together, power caps, and the jobs that a wide cause explains."""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.fabric.ports import FabricDegraded
from lockstep_alerts.conditions.fabric.storage import StorageDegraded
from lockstep_alerts.conditions.gpu_signs import GPU_JOIN, HOLD_SECONDS, JUDGED_EVERY_SECONDS
from lockstep_alerts.conditions.joins import NODE_LABELS, held_gpus
from lockstep_alerts.conditions.nodes.node_faults import jobs_on_failed_nodes
from lockstep_alerts.conditions.nodes.node_lost import jobs_on_lost_nodes
from lockstep_alerts.conditions.wide import Wide
from lockstep_alerts.reading.quantities import Window, number, whole_number
from lockstep_catalogue import incidents
from lockstep_catalogue.promql import by, eq, select
from lockstep_catalogue.windows import ScrapeWindows


class NodesLost(Wide):
    """Clusters in which several nodes under jobs are gone or have failed: a rack, a power feed.

    Attributes:
        window: how long after a fatal Xid its GPU counts as faulty.
    """

    CAUSE = "nodes"
    OF_NODES = ("TrainJobNodeFault", "TrainJobNodeLost")

    window: Window

    def hit(self, windows: ScrapeWindows) -> str:
        """Jobs on nodes that are gone or have failed."""
        failed = jobs_on_failed_nodes(windows, self.window)
        return f"({failed}\nor\n{jobs_on_lost_nodes(windows)})"


class PowerCapped(Wide):
    """Clusters in which GPUs of jobs on several nodes are held below their power."""

    DETECTED_AFTER = max(HOLD_SECONDS.values()) + JUDGED_EVERY_SECONDS
    CAUSE = "power"
    OF_NODES = ("TrainJobGpuDegraded",)

    def hit(self, windows: ScrapeWindows) -> str:
        """Jobs with a GPU that the agent calls capped."""
        capped = select(incidents.GPU_HEALTH, eq(incidents.GPU_REASON, "power_capped"))
        return by("group", f"{held_gpus(windows)} and {GPU_JOIN} {capped}", *NODE_LABELS)


class Explained(Condition):
    """The jobs that a wide cause explains: it notifies nobody, and keeps their symptoms quiet.

    Attributes:
        least_nodes, window, above_seconds: as those of the causes.
    """

    least_nodes: Annotated[int, whole_number(1, 10_000)]
    window: Window
    above_seconds: Annotated[float, number(0, 3600)]

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
