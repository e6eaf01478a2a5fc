"""Conditions on the fabric and the storage, and the jobs that a wide cause explains."""

from typing import Annotated

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.gpu_signs import GPU_JOIN, HOLD_SECONDS, JUDGED_EVERY_SECONDS
from lockstep_alerts.conditions.joins import (
    JOB_JOIN,
    JOB_LABELS,
    MACHINE_JOIN,
    NODE_LABELS,
    held_gpus,
    ran_on,
)
from lockstep_alerts.conditions.nodes import jobs_on_failed_nodes, jobs_on_lost_nodes
from lockstep_alerts.conditions.wide import Wide
from lockstep_alerts.reading.quantities import Ratio, Window, number, whole_number
from lockstep_catalogue import fabric, gpu, host, incidents, training
from lockstep_catalogue.labels import (
    CLUSTER,
    DEVICE,
    FILESYSTEM,
    GOODPUT,
    JOB_ID,
    NODE,
    PORT_REASON,
    SOURCE,
    VERDICT,
    VOLUME,
)
from lockstep_catalogue.promql import Matcher, by, eq, has, increase, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

_MOMENT_SECONDS = 120
_BROKEN = ("down", "flapping", "retries")
"""Reasons of a port's verdict that break connections; the others make it slower or warn."""
_DEVICE_JOIN = f"on ({names(CLUSTER, NODE, DEVICE)})"


def _broken(*matchers: Matcher) -> str:
    by_agent = select(fabric.PORT_HEALTH, one_of(PORT_REASON, *_BROKEN), *matchers)
    expected = select(incidents.EXPECTED_PORT_HEALTH, eq(VERDICT, "failed"), *matchers)
    return f"({by_agent} or {expected})"


def jobs_at_broken_ports(windows: ScrapeWindows) -> str:
    """Jobs and nodes with a broken port: next to the job's GPUs, where affinity is known."""
    owners = select(gpu.PORT_OWNER_INFO, has(JOB_ID))
    lately = f"max_over_time({owners}[{windows.cover(_MOMENT_SECONDS)}])"
    near = f"{lately} and {_DEVICE_JOIN} {_broken()}"
    any_port = (
        f"{ran_on(windows)} unless {MACHINE_JOIN} {select(gpu.PORT_OWNER_INFO)}\n"
        f"and {MACHINE_JOIN} {_broken()}"
    )
    return by("group", f"{near}\nor\n{any_port}", *NODE_LABELS)


class PortFault(Condition):
    """A port that a job uses is down, flaps, or has used up its retries."""

    DETECTED_AFTER = JUDGED_EVERY_SECONDS

    def expression(self, windows: ScrapeWindows) -> str:
        """Jobs and nodes with a broken port."""
        return jobs_at_broken_ports(windows)

    def evidence(self) -> str:
        """Asks Prometheus which ports of the node are broken, and how."""
        item = (
            "{{ $series.Labels.device }} {{ $series.Labels.port_reason }}"
            "{{ $series.Labels.expected_reason }}"
        )
        return listing(_broken(eq(CLUSTER, "%[1]s"), eq(NODE, "%[2]s")), item, CLUSTER, NODE)


class FabricDegraded(Wide):
    """Clusters in which ``least_nodes`` nodes under jobs or more have a broken port at one time."""

    CAUSE = "fabric"
    OF_NODES = ("TrainPortFault",)

    def hit(self, windows: ScrapeWindows) -> str:
        """Jobs and nodes with a broken port."""
        return jobs_at_broken_ports(windows)


class PacketsLost(Condition):
    """Jobs that resend more than ``above_ratio`` of their segments and wait for communication.

    Attributes:
        above_ratio: share of the job's TCP segments that are sent again.
        sync_ratio: share of the job's time in exposed communication: it suffers.
    """

    DETECTED_AFTER = LIVE_WINDOW

    above_ratio: Ratio
    sync_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of segments sent again, by job and node, of jobs that wait for communication."""
        again = by("sum", rate(host.JOB_TCP_RETRANSMITS, windows.live), *NODE_LABELS)
        segments = by("sum", rate(host.JOB_TCP_SEGMENTS, windows.live), *NODE_LABELS)
        exposed = eq(GOODPUT, "communication")
        waited, spent = (
            by("sum", rate(training.GOODPUT_SECONDS, windows.live, *matchers), *JOB_LABELS)
            for matchers in ((exposed,), ())
        )
        return (
            f"{again} / ({segments} > 0) > {self.above_ratio:g}\n"
            f"and {JOB_JOIN} {waited} / {spent} > {self.sync_ratio:g}"
        )


# Local disks have the same name on every node, and fail one by one.
_SHARED = one_of(FILESYSTEM, "nfs", "nfs4")
_VOLUME_JOIN = f"on ({names(CLUSTER, NODE, VOLUME)})"


class StorageDegraded(Wide):
    """Shared storage that fails or is slow on ``least_nodes`` nodes under jobs or more.

    Attributes:
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
        sources = by("group", f"{info} and {_VOLUME_JOIN} {troubled}", CLUSTER, NODE, SOURCE)
        return f"({sources} and {MACHINE_JOIN} {ran_on(windows)})"

    def explained(self, windows: ScrapeWindows) -> str:
        """Every job on a node that the source troubles, where it troubles enough of them."""
        wide = f"on ({names(*self.PLACE)}) ({self.expression(windows)})"
        jobs = f"{ran_on(windows)} and {MACHINE_JOIN} ({self.hit(windows)} and {wide})"
        return by("group", jobs, CLUSTER, JOB_ID)


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
