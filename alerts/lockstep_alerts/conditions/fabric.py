"""Conditions on the fabric and the storage, and the loss of several jobs to one cause."""

from typing import Annotated

from lockstep_alerts.conditions import joins
from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.wide import UNWELL, broken_ports, jobs_at_ports, troubled_sources
from lockstep_alerts.reading.entry import Ratio, Window, number, whole_number
from lockstep_catalogue import foreign, gpu, host, ledger, recorded, training
from lockstep_catalogue.labels import CLUSTER, GOODPUT, JOB_ID, NODE, SOURCE, UUID
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import by, eq, has, increase, names, rate, select
from lockstep_catalogue.windows import ScrapeWindows

MOST_NAMED = 32
"""A page is read on a telephone."""


class PortFault(Condition):
    """A port that a job uses is down, flaps, has errors, or is slower than it should be."""

    DETECTED_AFTER = joins.JUDGED_EVERY_SECONDS

    def expression(self, windows: ScrapeWindows) -> str:
        """Jobs and nodes with a broken port."""
        return jobs_at_ports(windows, broken_ports(which=UNWELL))

    def evidence(self) -> str:
        """Asks Prometheus which ports of the node are broken, and how."""
        item = (
            "{{ $series.Labels.device }} {{ $series.Labels.port_reason }}"
            "{{ $series.Labels.expected_reason }}"
        )
        here = broken_ports(eq(CLUSTER, "%[1]s"), eq(NODE, "%[2]s"), which=UNWELL)
        return joins.listing(here, item, CLUSTER, NODE)


class PacketsLost(Condition):
    """Jobs that resend more than ``above_ratio`` of their segments and wait for communication.

    Attributes:
        sync_ratio: share of the job's time in exposed communication: it suffers.
    """

    DETECTED_AFTER = LIVE_WINDOW

    above_ratio: Ratio
    sync_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of segments sent again, by job and node, of jobs that wait for communication."""
        again = by("sum", rate(host.JOB_TCP_RETRANSMITS, windows.live), *joins.NODE_LABELS)
        segments = by("sum", rate(host.JOB_TCP_SEGMENTS, windows.live), *joins.NODE_LABELS)
        exposed = eq(GOODPUT, "communication")
        waited, spent = (
            by("sum", rate(training.GOODPUT_SECONDS, windows.live, *matchers), *joins.JOB_LABELS)
            for matchers in ((exposed,), ())
        )
        return (
            f"{again} / ({segments} > 0) > {self.above_ratio:g}\n"
            f"and {joins.JOB_JOIN} {waited} / {spent} > {self.sync_ratio:g}"
        )


class StorageDegraded(Condition):
    """Shared storage that fails or is slow on ``least_nodes`` nodes under jobs or more.

    Attributes:
        above_seconds: mean duration of a request, from which on the volume crawls.
        least_nodes: that see it; one node may have a bad mount.
    """

    DETECTED_AFTER = "window"

    window: Window
    above_seconds: Annotated[float, number(0, 3600)]
    least_nodes: Annotated[int, whole_number(1, 10_000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of nodes that each source troubles."""
        sources = troubled_sources(windows, self.window.text, self.above_seconds)
        return f"{by('count', sources, CLUSTER, SOURCE)} >= {self.least_nodes}"


class ClusterLosing(Condition):
    """Several jobs lose time to one cause, or jobs wait for a scheduler that starts none.

    Attributes:
        idle_gpus: that nobody holds meanwhile: a full cluster waits rightly.
    """

    DETECTED_AFTER = LIVE_WINDOW
    GPU_FLOORS = ("idle_gpus",)

    window: Window
    idle_gpus: Annotated[int, whole_number(0, 1_000_000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """GPU-hours that are lost in an hour, by cause."""
        cause = foreign.ALERT_CAUSE
        lost = by("sum", select(recorded.CLUSTER_LOSS), CLUSTER, cause)
        return f'{lost}\nor\nlabel_replace({self._idle()}, "{cause.name}", "scheduler", "", "")'

    def _idle(self) -> str:
        """GPUs that nobody holds while jobs wait and none starts."""
        window = self.window.text
        of_gpu = (CLUSTER, NODE, UUID)
        owned = by("group", select(gpu.GPU_OWNER_INFO, has(JOB_ID)), *of_gpu)
        every = by("group", select(gpu.GPU_INFO), *of_gpu)
        cordoned = f"on ({NODE.name}) ({select(foreign.KUBE_CORDONED)} == 1)"
        free = by(
            "count", f"{every} unless on ({names(*of_gpu)}) {owned} unless {cordoned}", CLUSTER
        )
        return f"({free} >= {self.idle_gpus}\nand {joins.CLUSTER_JOIN} {nothing_starts(window)})"

    def evidence(self) -> str:
        """Asks Prometheus which jobs lose how much."""
        here = (eq(CLUSTER, "%[1]s"), eq(foreign.ALERT_CAUSE, "%[2]s"))
        item = "{{ $series.Labels.job_id }} ({{ $series.Value | humanize }} GPUs)"
        labels: tuple[Label, ...] = (CLUSTER, foreign.ALERT_CAUSE)
        jobs = by("max", select(recorded.CLUSTER_LOSS, *here), JOB_ID)
        return joins.listing(jobs, item, *labels, before="Jobs: ", most=MOST_NAMED)


def nothing_starts(window: str) -> str:
    """Clusters in which jobs have waited for the whole window and none has started."""
    pending = by("max", select(ledger.JOBS, eq(ledger.JOB_STATUS, "pending")), CLUSTER)
    waited = f"min_over_time({select(ledger.JOBS, eq(ledger.JOB_STATUS, 'pending'))}[{window}])"
    before = f"{select(ledger.JOBS, eq(ledger.JOB_STATUS, 'pending'))} offset {window}"
    starts = by("sum", increase(ledger.JOBS_STARTED, window), CLUSTER)
    return (
        f"({pending} > 0 and {joins.CLUSTER_JOIN} {by('min', waited, CLUSTER)} > 0"
        f" and {joins.CLUSTER_JOIN} {before} > 0 and {joins.CLUSTER_JOIN} {starts} < 0.5)"
    )
