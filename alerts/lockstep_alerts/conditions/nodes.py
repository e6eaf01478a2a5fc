"""Conditions on nodes of jobs: their faults, their loss, pressure of other jobs, idle ones."""

from typing import Annotated

from lockstep_alerts.conditions import gpu_signs, joins
from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.evidence import listing
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
from lockstep_alerts.conditions.joins import MACHINE_JOIN, NODE_LABELS, held_gpus, ran_on
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.reading.quantities import Ratio, Window, whole_number
from lockstep_catalogue import agent, foreign, gpu, incidents, recorded, training
from lockstep_catalogue import incidents as incident_metrics
from lockstep_catalogue.labels import CLUSTER, GPU, JOB_ID, NODE, STATE, THROTTLE, VERDICT
from lockstep_catalogue.promql import Matcher, by, eq, has, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows, spelled

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


_MEMORY = "10m"


def jobs_on_lost_nodes(windows: ScrapeWindows) -> str:
    """Nodes that are gone, each with the jobs whose ranks ran there at its last sample."""
    info = select(agent.AGENT_INFO)
    present = by("group", f"present_over_time({info}[{windows.live}])", CLUSTER, NODE)
    silent = (
        f"{by('group', f'last_over_time({info}[{_MEMORY}])', CLUSTER, NODE)}\n"
        f"unless {joins.MACHINE_JOIN} {present}"
    )
    # What ran there when the agent was last seen: a job that had left before is not hit.
    past = f"[{_MEMORY}:{spelled(windows.scrape_seconds)}]"
    ranks = select(training.RANKS, one_of(STATE, *joins.RUNNING))
    ran_at = by("max", f"max_over_time(timestamp({ranks} > 0){past})", *joins.NODE_LABELS)
    seen_at = by("max", f"max_over_time(timestamp({info}){past})", CLUSTER, NODE)
    carried = f"({ran_at} >= {joins.MACHINE_JOIN} group_left () {seen_at})"
    # An agent that is restarted stops no job: the ranks elsewhere go on, or pause by plan.
    stands = f"{joins.recent(recorded.STANDING, windows)} unless {joins.has_paused(windows)}"

    def not_ready(*matchers: Matcher) -> str:
        ready = (eq(foreign.KUBE_CONDITION, "Ready"), eq(foreign.KUBE_STATUS, "true"))
        condition = select(foreign.KUBE_NODE_CONDITION, *ready, *matchers)
        return f"({by('max', condition, CLUSTER, NODE)} == 0)"

    return (
        f"{carried} and {joins.MACHINE_JOIN} ({silent}) and {joins.JOB_JOIN} ({stands})\nor\n"
        f"{joins.kube_says(f'({carried})', not_ready)}"
    )


class JobNodeLost(Condition):
    """No sample of the node's agent in the live window, or Kubernetes calls the node not ready."""

    DETECTED_AFTER = LIVE_WINDOW

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes that are gone, each with the jobs that they carried."""
        return jobs_on_lost_nodes(windows)


SINGLE_JOB_ALERTS = ("TrainJobNodeFault", "TrainJobNodeLost")
"""Alerts that name one job and its node; rules of a group are evaluated in order, these first."""


def _jobs(*matchers: Matcher) -> str:
    firing = (one_of(foreign.ALERT_NAME, *SINGLE_JOB_ALERTS), eq(foreign.ALERT_STATE, "firing"))
    return by(
        "group",
        select(foreign.ALERTS, *firing, has(NODE), *matchers),
        CLUSTER,
        NODE,
        JOB_ID,
    )


class SharedNodeFault(Condition):
    """Nodes whose fault stops ``least_jobs`` jobs or more.

    Attributes:
        least_jobs: hit by the node at one time, from which on the page is the node's.
    """

    DETECTED_AFTER = JUDGED_EVERY_SECONDS

    least_jobs: Annotated[int, whole_number(1, 100)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of jobs that each faulty node hits."""
        return f"{by('count', _jobs(), CLUSTER, NODE)} >= {self.least_jobs}"

    def evidence(self) -> str:
        """Asks Prometheus which jobs the node hits."""
        on_node = (eq(CLUSTER, "%[1]s"), eq(NODE, "%[2]s"))
        return f"Jobs: {listing(_jobs(*on_node), '{{ $series.Labels.job_id }}', CLUSTER, NODE)}"


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
