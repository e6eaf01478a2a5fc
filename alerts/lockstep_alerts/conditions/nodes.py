"""Conditions on nodes and GPUs: their faults, their loss, and what makes them slower."""

from lockstep_alerts.conditions import joins
from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.reading.entry import Ratio, Window
from lockstep_alerts.reading.model import Duration
from lockstep_catalogue import gpu, incidents, recorded
from lockstep_catalogue.labels import CLUSTER, GPU, NODE, THROTTLE, VERDICT
from lockstep_catalogue.promql import by, eq, increase, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

_NODE_MATCHERS = (eq(CLUSTER, "%[1]s"), eq(NODE, "%[2]s"))
_GPU_MATCHERS = (*_NODE_MATCHERS, eq(GPU, "%[3]s"))
_BROKEN_HOST = (
    "machine_check", "memory_uncorrected", "pcie_uncorrected", "hard_lockup", "nic_lost",
)  # fmt: skip
# Not the power cap and not idleness: a GPU at its default limit is at work.
_HELD_BACK = ("sw_thermal", "hw_thermal", "hw_power_brake", "hw_slowdown")


def jobs_on_failed_nodes(windows: ScrapeWindows, window: Duration) -> str:
    """Nodes with a GPU or driver that failed within a window, each with every job on it."""
    gpus, xids = joins.held_gpus(windows), joins.fatal_xids(f"{window.seconds}")
    failed = f"{gpus} and {joins.GPU_JOIN} {joins.failed_gpus()}"
    faulty = f"{failed}\nor\n{gpus} and {joins.BUS_JOIN} ({xids})"
    node = f"{joins.ran_on(windows)} and {joins.MACHINE_JOIN} {_broken_nodes()}"
    return by("group", f"{faulty}\nor\n{node}", *joins.NODE_LABELS)


def _broken_nodes() -> str:
    return select(incidents.NODE_HEALTH, one_of(incidents.NODE_REASON, *joins.WHOLE_NODE))


class NodeFault(Condition):
    """Nodes whose GPU, driver, switch or memory has failed in ``window``, under a job or not."""

    DETECTED_AFTER = joins.JUDGED_EVERY_SECONDS

    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes with a failed GPU, a failed driver, or broken hardware."""
        host_incidents = one_of(incidents.HOST_INCIDENT, *_BROKEN_HOST)
        fatal = eq(incidents.SXID_FATAL, "fatal")
        signs = (
            joins.failed_gpus(),
            joins.fatal_xids(f"{self.window.seconds}"),
            _broken_nodes(),
            f"{increase(incidents.HOST_INCIDENTS, self.window.text, host_incidents)} > 0",
            f"{increase(incidents.NVSWITCH_INCIDENTS, self.window.text, fatal)} > 0",
        )
        nodes = by("group", "\nor\n".join(f"({each})" for each in signs), CLUSTER, NODE)
        return joins.unless_drained(nodes, windows)

    def evidence(self) -> str:
        """Asks Prometheus which GPUs of the node failed, and how."""
        failed = select(incidents.GPU_HEALTH, eq(VERDICT, "failed"), *_NODE_MATCHERS)
        gpus = joins.listing(
            failed, "GPU {{ $series.Labels.gpu }}: {{ $series.Labels.gpu_reason }}", CLUSTER, NODE
        )
        item = (
            "Xid {{ $series.Labels.xid }} on {{ $series.Labels.pci_bus_id }}"
            ": {{ $series.Labels.remedy }}"
        )
        xids = joins.fatal_xids(f"{self.window.seconds}", *_NODE_MATCHERS, has_remedy=True)
        return f"{gpus} {joins.listing(xids, item, CLUSTER, NODE)}"


class NodeLost(Condition):
    """Nodes under jobs that are gone: silent while the job stands or is not seen, or not ready."""

    DETECTED_AFTER = LIVE_WINDOW

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes that are gone, each with the jobs that they carried."""
        return joins.recent(recorded.GONE, windows)


class GpuDegraded(Condition):
    """A GPU works with less than it should have, or waits for a reset.

    Attributes:
        most_ratio: of a cluster's GPUs that are held below their power: above it that is how the
            site runs.
    """

    DETECTED_AFTER = max(joins.HOLD_SECONDS.values()) + joins.JUDGED_EVERY_SECONDS

    most_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Degraded GPUs."""
        capped = select(incidents.GPU_HEALTH, eq(incidents.GPU_REASON, "power_capped"))
        every = by("count", by("group", select(incidents.GPU_HEALTH), CLUSTER, NODE, GPU), CLUSTER)
        most = (
            f"{by('count', capped, CLUSTER)} > {joins.CLUSTER_JOIN} ({self.most_ratio:g} * {every})"
        )
        degraded = select(incidents.GPU_HEALTH, eq(VERDICT, "degraded"))
        reasons = (CLUSTER, NODE, GPU, incidents.GPU_REASON)
        sites = f"on ({names(*reasons)}) ({capped} and {joins.CLUSTER_JOIN} ({most}))"
        gpus = by("group", f"{degraded} unless {sites}", CLUSTER, NODE, GPU)
        return joins.unless_drained(gpus, windows)

    def evidence(self) -> str:
        """Asks Prometheus how it is degraded."""
        here = select(incidents.GPU_HEALTH, eq(VERDICT, "degraded"), *_GPU_MATCHERS)
        return joins.listing(here, "{{ $series.Labels.gpu_reason }}", CLUSTER, NODE, GPU)


class GpuThrottled(Condition):
    """GPUs whose clocks are held back for more than ``above_ratio`` of ``window``."""

    window: Window
    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """The largest share of the time by GPU."""
        held = rate(gpu.GPU_THROTTLE_SECONDS, self.window.text, one_of(THROTTLE, *_HELD_BACK))
        return f"{by('max', held, CLUSTER, NODE, GPU)} > {self.above_ratio:g}"

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """The part of the window that makes the share, of a GPU that is held back always."""
        return round(self.window.seconds * self.above_ratio) + 1
