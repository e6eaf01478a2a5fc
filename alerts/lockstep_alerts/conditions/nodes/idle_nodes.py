"""Tickets on GPUs and nodes that no job pays for now: repair them before the next job comes."""

from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.gpu_signs import (
    HOLD_SECONDS,
    JUDGED_EVERY_SECONDS,
    ON_GPU,
    WHOLE_NODE,
    degraded,
    failed,
    fatal_xids,
    has_owner,
)
from lockstep_alerts.conditions.hardware_series import GPU as IDLE_GPU
from lockstep_alerts.conditions.hardware_series import gpu_verdict, holds_gpu
from lockstep_alerts.conditions.synthetic import MACHINE, Samples, Timing, sample_node
from lockstep_alerts.reading.quantities import Ratio, Window
from lockstep_catalogue import gpu
from lockstep_catalogue import incidents as incident_metrics
from lockstep_catalogue.labels import CLUSTER, GPU, NODE, PCI_BUS_ID, THROTTLE
from lockstep_catalogue.promql import by, eq, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

_ON_BUS = f"on ({names(CLUSTER, NODE, PCI_BUS_ID)})"
# Not the power cap and not idleness: a GPU at its default limit is at work.
_HELD_BACK = ("sw_thermal", "hw_thermal", "hw_power_brake", "hw_slowdown")
_BROKEN_HOST = ("machine_check", "memory_uncorrected", "pcie_uncorrected", "hard_lockup")


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFatalError(Condition):
    """Nodes whose GPU, driver or memory failed while no job held it.

    Attributes:
        window: how long after a fatal Xid or an incident of the kernel it counts.
    """

    DETECTED_AFTER = JUDGED_EVERY_SECONDS

    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes with a failed GPU that nobody holds, a failed driver, or broken hardware."""
        gpus = f"{failed()} unless {ON_GPU} {has_owner()}"
        xids = f"({fatal_xids(f'{self.window.seconds}')}) unless {_ON_BUS} {has_owner()}"
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

    def cases(self, timing: Timing) -> list[Case]:
        lost = gpu_verdict(timing, "failed", "lost")
        grows = timing.steps_up()
        memory = sample_node(
            incident_metrics.HOST_INCIDENTS, grows, host_incident="memory_uncorrected"
        )
        lockup = sample_node(incident_metrics.HOST_INCIDENTS, grows, host_incident="soft_lockup")
        return [
            Case("an idle GPU is lost", [lost], MACHINE),
            Case("the memory of the host has an error", [memory], MACHINE),
            Case("a GPU is lost that a job holds", [lost, holds_gpu(timing)]),
            Case("a processor hangs for a while", [lockup]),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLinkDegraded(Condition):
    """A GPU that nobody holds is worse than it should be: memory, PCIe, NVLink."""

    DETECTED_AFTER = max(HOLD_SECONDS.values()) + JUDGED_EVERY_SECONDS

    def expression(self, windows: ScrapeWindows) -> str:
        """Degraded GPUs without an owner."""
        return by("group", f"{degraded()} unless {ON_GPU} {has_owner()}", CLUSTER, NODE, GPU)

    def cases(self, timing: Timing) -> list[Case]:
        lost = gpu_verdict(timing, "degraded", "nvlink_down")
        return [
            Case("a link of an idle GPU is lost", [lost], {**MACHINE, "gpu": "3"}),
            Case("a job holds the GPU", [lost, holds_gpu(timing)]),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
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

    def cases(self, timing: Timing) -> list[Case]:
        named = {**MACHINE, "gpu": "3", "throttle": "hw_thermal"}

        def held(seconds_a_second: float, reason: str) -> list[Samples]:
            course = timing.grows(seconds_a_second)
            return [sample_node(gpu.GPU_THROTTLE_SECONDS, course, **IDLE_GPU, throttle=reason)]

        return [
            Case("it is too hot", held(1, "hw_thermal"), named),
            Case("it is too hot now and then", held(self.above_ratio / 2, "hw_thermal")),
            Case("it is at its power limit", held(1, "sw_power_cap")),
        ]
