"""Ports under jobs: down, flapping or losing packets; and from three nodes on, the fabric."""

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.gpu_signs import JUDGED_EVERY_SECONDS
from lockstep_alerts.conditions.joins import JOB_JOIN, JOB_LABELS, MACHINE_JOIN, NODE_LABELS, ran_on
from lockstep_alerts.conditions.wide import Wide
from lockstep_alerts.reading.quantities import Ratio
from lockstep_catalogue import fabric, gpu, host, incidents, training
from lockstep_catalogue.labels import CLUSTER, DEVICE, GOODPUT, JOB_ID, NODE, PORT_REASON, VERDICT
from lockstep_catalogue.promql import Matcher, by, eq, has, names, one_of, rate, select
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
