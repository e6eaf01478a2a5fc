"""A GPU, the driver or the node under a job fails: one page a job and node, naming the part."""

from lockstep_alerts.conditions import gpu_signs
from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.joins import MACHINE_JOIN, NODE_LABELS, held_gpus, ran_on
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.reading.quantities import Window
from lockstep_catalogue import incidents
from lockstep_catalogue.labels import CLUSTER, NODE, VERDICT
from lockstep_catalogue.promql import by, eq, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

_NODE_MATCHERS = (eq(CLUSTER, "%[1]s"), eq(NODE, "%[2]s"))


def _named_gpus(query: str) -> str:
    item = "GPU {{ $series.Labels.gpu }}: {{ $series.Labels.gpu_reason }}"
    return listing(query, item, CLUSTER, NODE)


def jobs_on_failed_nodes(windows: ScrapeWindows, window: Duration) -> str:
    """Nodes with a failed GPU or driver, each with every job that it carries.

    Args:
        windows: what the scrape interval decides.
        window: how long after a fatal Xid its GPU counts as faulty.
    """
    gpus, xids = held_gpus(windows), gpu_signs.fatal_xids(f"{window.seconds}")
    failed = f"{gpus} and {gpu_signs.GPU_JOIN} {gpu_signs.failed()}"
    faulty = f"{failed}\nor\n{gpus} and {gpu_signs.BUS_JOIN} ({xids})"
    hung = select(incidents.NODE_HEALTH, one_of(incidents.NODE_REASON, *gpu_signs.WHOLE_NODE))
    node = f"{ran_on(windows)} and {MACHINE_JOIN} {hung}"
    return by("group", f"{faulty}\nor\n{node}", *NODE_LABELS)


class JobNodeFault(Condition):
    """Jobs on a node whose GPU or driver failed.

    Attributes:
        window: how long after a fatal Xid its GPU counts as faulty.
    """

    DETECTED_AFTER = gpu_signs.JUDGED_EVERY_SECONDS

    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes with a failed GPU or driver, each with every job that it carries."""
        return jobs_on_failed_nodes(windows, self.window)

    def evidence(self) -> str:
        """Asks Prometheus which GPUs of the node failed, and how."""
        gpus = _named_gpus(select(incidents.GPU_HEALTH, eq(VERDICT, "failed"), *_NODE_MATCHERS))
        item = "Xid {{ $series.Labels.xid }} on {{ $series.Labels.pci_bus_id }}"
        xids = gpu_signs.fatal_xids(f"{self.window.seconds}", *_NODE_MATCHERS)
        return f"{gpus} {listing(xids, item, CLUSTER, NODE)}"


class JobGpuDegraded(Condition):
    """A GPU under a job is throttled, or its memory, PCIe or NVLink is worse than it should be."""

    DETECTED_AFTER = max(gpu_signs.HOLD_SECONDS.values()) + gpu_signs.JUDGED_EVERY_SECONDS

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes with a degraded GPU, each with the job that holds the GPU."""
        gpus = f"{held_gpus(windows)} and {gpu_signs.GPU_JOIN} {gpu_signs.degraded()}"
        return by("group", gpus, *NODE_LABELS)

    def evidence(self) -> str:
        """Asks Prometheus which GPUs of the node are degraded, and how."""
        return _named_gpus(
            select(
                incidents.GPU_HEALTH,
                one_of(incidents.GPU_REASON, *gpu_signs.BROKEN_PARTS),
                *_NODE_MATCHERS,
            )
        )
