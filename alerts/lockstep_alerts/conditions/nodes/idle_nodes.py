"""Tickets on GPUs and nodes that no job pays for now: repair them before the next job comes."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.gpu_signs import (
    BUS_JOIN,
    GPU_JOIN,
    HOLD_SECONDS,
    JUDGED_EVERY_SECONDS,
    WHOLE_NODE,
    degraded,
    failed,
    fatal_xids,
)
from lockstep_alerts.reading.quantities import Ratio, Window
from lockstep_catalogue import gpu
from lockstep_catalogue import incidents as incident_metrics
from lockstep_catalogue.labels import CLUSTER, GPU, NODE, THROTTLE
from lockstep_catalogue.promql import by, eq, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

# Not the power cap and not idleness: a GPU at its default limit is at work.
_HELD_BACK = ("sw_thermal", "hw_thermal", "hw_power_brake", "hw_slowdown")
_OWNED = select(gpu.GPU_OWNER_INFO)
_BROKEN_HOST = ("machine_check", "memory_uncorrected", "pcie_uncorrected", "hard_lockup")


class GpuFatalError(Condition):
    """Nodes whose GPU, driver or memory failed while no job held it.

    Attributes:
        window: how long after a fatal Xid or an incident of the kernel it counts.
    """

    DETECTED_AFTER = JUDGED_EVERY_SECONDS

    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes with a failed GPU that nobody holds, a failed driver, or broken hardware."""
        gpus = f"{failed()} unless {GPU_JOIN} {_OWNED}"
        xids = f"({fatal_xids(f'{self.window.seconds}')}) unless {BUS_JOIN} {_OWNED}"
        node = select(
            incident_metrics.NODE_HEALTH, one_of(incident_metrics.NODE_REASON, *WHOLE_NODE)
        )
        incidents = select(
            incident_metrics.HOST_INCIDENTS, one_of(incident_metrics.HOST_INCIDENT, *_BROKEN_HOST)
        )
        switches = select(
            incident_metrics.NVSWITCH_INCIDENTS, eq(incident_metrics.SXID_FATAL, "fatal")
        )
        grown = "\nor\n".join(
            f"increase({counter}[{self.window}]) > 0" for counter in (incidents, switches)
        )
        return by("group", f"{gpus}\nor\n{xids}\nor\n{node}\nor\n{grown}", CLUSTER, NODE)


class GpuLinkDegraded(Condition):
    """A GPU that nobody holds is worse than it should be: memory, PCIe, NVLink."""

    DETECTED_AFTER = max(HOLD_SECONDS.values()) + JUDGED_EVERY_SECONDS

    def expression(self, windows: ScrapeWindows) -> str:
        """Degraded GPUs without an owner."""
        return by("group", f"{degraded()} unless {GPU_JOIN} {_OWNED}", CLUSTER, NODE, GPU)


class GpuThrottled(Condition):
    """GPUs whose clocks are held back for more than ``above_ratio`` of ``window``.

    Attributes:
        window: over which the share is taken.
        above_ratio: share of the time for which clocks were held back by heat or the power brake.
    """

    window: Window
    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the time by GPU and reason."""
        held = rate(gpu.GPU_THROTTLE_SECONDS, self.window.text, one_of(THROTTLE, *_HELD_BACK))
        return f"{by('max', held, CLUSTER, NODE, GPU, THROTTLE)} > {self.above_ratio:g}"

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """The part of the window that makes the share, of a GPU that is held back always."""
        return round(self.window.seconds * self.above_ratio) + 1
