"""The host under a job is short of something: processors, memory, or room for its pods."""

from lockstep_alerts.conditions import joins
from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.reading.quantities import Ratio, Window
from lockstep_catalogue import foreign, host, recorded, training
from lockstep_catalogue.labels import GOODPUT, NAMESPACE, POD, PRESSURE, RESOURCE, STATE
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import Matcher, by, eq, names, one_of, rate, select
from lockstep_catalogue.windows import ScrapeWindows

_STALL_SECONDS = 60
_KNOWN = "2h"
_KUBE_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure")


class Contention(Condition):
    """Jobs that wait for processors on a node, and are late or wait for data because of it.

    Attributes:
        window: over which shares are taken.
        pressure_ratio: share of the time in which a task of the job waits for a processor.
        throttled_ratio: share of the time for which the job's limit kept it from running.
        harm_ratio: what the job must pay for it: waiting for data or launches as a share of its
            time on the node, or lateness of one of the node's ranks as a share of the step.
    """

    DETECTED_AFTER = "window"

    window: Window
    pressure_ratio: Ratio
    throttled_ratio: Ratio
    harm_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the time in which the job waits for processors, by node, where it pays."""
        window = self.window.text

        def share(metric: Metric, limit: float, *matchers: Matcher) -> str:
            return f"{by('max', rate(metric, window, *matchers), *joins.NODE_LABELS)} > {limit:g}"

        pressed = share(
            host.JOB_PRESSURE_SECONDS,
            self.pressure_ratio,
            eq(RESOURCE, "cpu"),
            eq(PRESSURE, "some"),
        )
        throttled = share(host.JOB_THROTTLED_SECONDS, self.throttled_ratio)
        # What the loops themselves waited for a processor needs no other proof of harm.
        waited = by("sum", rate(training.RUN_QUEUE_SECONDS, window), *joins.NODE_LABELS)
        loops = by("sum", select(training.RANKS, one_of(STATE, *joins.RUNNING)), *joins.NODE_LABELS)
        queued = f"{waited} / {joins.NODE_JOIN} ({loops} > 0) > {self.harm_ratio:g}"
        harmed = f"and {joins.NODE_JOIN} ({self._harm(windows)})"
        return f"({pressed}\nor\n{throttled})\n{harmed}\nor\n{queued}"

    def _harm(self, windows: ScrapeWindows) -> str:
        """Nodes on which the job waits for data or launches, or with a rank that is late."""
        waits = one_of(GOODPUT, "data_wait", "host_bound")
        lost = by(
            "sum", rate(training.GOODPUT_SECONDS, self.window.text, waits), *joins.NODE_LABELS
        )
        spent = by("sum", rate(training.GOODPUT_SECONDS, self.window.text), *joins.NODE_LABELS)
        late = by("max", joins.recent(recorded.LATENESS_RATIO, windows), *joins.NODE_LABELS)
        return f"{lost} / ({spent} > 0) > {self.harm_ratio:g} or {late} > {self.harm_ratio:g}"


class NodePressure(Condition):
    """Nodes under jobs that run out of memory, disk or process numbers.

    Attributes:
        below_ratio: memory of the host that is left.
        above_ratio: memory of a job, of its limit.
        stall_ratio: share of the time in which a task of the job waits for memory.
    """

    below_ratio: Ratio
    above_ratio: Ratio
    stall_ratio: Ratio = 0.05

    def expression(self, windows: ScrapeWindows) -> str:
        """Nodes that run out of memory, disk or process numbers, with the jobs they carry."""
        available, total = select(host.MEMORY_AVAILABLE), select(host.MEMORY_TOTAL)
        scarce = f"({available} / {joins.MACHINE_JOIN} ({total} > 0) < {self.below_ratio:g})"
        limit = f"({self.above_ratio:g} * {select(host.JOB_MEMORY_LIMIT)})"
        # Page cache counts into the memory of a job, and is given back when it is asked for: only
        # a job whose tasks wait for memory is short of it.
        waits = rate(
            host.JOB_PRESSURE_SECONDS,
            windows.cover(_STALL_SECONDS),
            eq(RESOURCE, "memory"),
            eq(PRESSURE, "some"),
        )
        stalls = f"{by('max', waits, *joins.NODE_LABELS)} > {self.stall_ratio:g}"
        on_node = joins.NODE_JOIN
        full = f"{select(host.JOB_MEMORY)} > {on_node} {limit} and {on_node} ({stalls})"

        def pressed_by_kubernetes(*matchers: Matcher) -> str:
            kind = one_of(foreign.KUBE_CONDITION, *_KUBE_PRESSURE)
            holds = (kind, eq(foreign.KUBE_STATUS, "true"))
            return f"({select(foreign.KUBE_NODE_CONDITION, *holds, *matchers)} == 1)"

        pressed = joins.kube_says(joins.runs_on(), pressed_by_kubernetes)
        jobs = f"{joins.runs_on()} and {joins.MACHINE_JOIN} {scarce}\nor\n{full}\nor\n{pressed}"
        return by("group", jobs, *joins.NODE_LABELS)


class PodEvicted(Condition):
    """Pods that Kubernetes evicted within ``window``."""

    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Pods that were evicted within the window."""
        evicted = select(foreign.KUBE_POD_REASON, eq(foreign.KUBE_REASON, "Evicted"))
        # The status of an evicted pod stays until somebody deletes it.
        seen_before = f"max_over_time({evicted}[{_KNOWN}] offset {self.window}) == 1"
        # A fresh Prometheus sees the evictions of weeks: without any pod of before none is news.
        pods = f"last_over_time({select(foreign.KUBE_POD_REASON)}[{_KNOWN}] offset {self.window})"
        on_pod = f"on ({names(NAMESPACE, POD)})"
        news = f"{evicted} == 1 unless {on_pod} {seen_before} and on () ({by('group', pods)})"
        return by("group", news, NAMESPACE, POD)
