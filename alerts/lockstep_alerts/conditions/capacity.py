"""Conditions on what jobs are given and use: GPUs, places in the queue, time, recovery points."""

from typing import Annotated

from lockstep_alerts.conditions import joins
from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.fabric import nothing_starts
from lockstep_alerts.conditions.joins import (
    GPU_JOIN,
    JOB_JOIN,
    JOB_LABELS,
    recent,
    select_jobs_without_pages,
    select_training_jobs,
)
from lockstep_alerts.reading.entry import Ratio, Window, number, whole_number
from lockstep_catalogue import foreign, gpu, host, labels, ledger, recorded, training
from lockstep_catalogue.gpu import GPU_OWNER_INFO
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import (
    Matcher,
    by,
    eq,
    has,
    histogram_quantile,
    increase,
    names,
    one_of,
    rate,
    select,
)
from lockstep_catalogue.windows import ScrapeWindows

_STALL_SECONDS = 60
_KNOWN = "2h"
_KUBE_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure")


class Contention(Condition):
    """Jobs that wait for processors on a node, and are late or wait for data because of it.

    Attributes:
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
            eq(labels.RESOURCE, "cpu"),
            eq(labels.PRESSURE, "some"),
        )
        throttled = share(host.JOB_THROTTLED_SECONDS, self.throttled_ratio)
        # What the loops themselves waited for a processor needs no other proof of harm.
        waited = by("sum", rate(training.RUN_QUEUE_SECONDS, window), *joins.NODE_LABELS)
        loops = by(
            "sum", select(training.RANKS, one_of(labels.STATE, *joins.RUNNING)), *joins.NODE_LABELS
        )
        queued = f"{waited} / {joins.NODE_JOIN} ({loops} > 0) > {self.harm_ratio:g}"
        harmed = f"and {joins.NODE_JOIN} ({self._harm(windows)})"
        return f"({pressed}\nor\n{throttled})\n{harmed}\nor\n{queued}"

    def _harm(self, windows: ScrapeWindows) -> str:
        """Nodes on which the job waits for data or launches, or with a rank that is late."""
        waits = one_of(labels.GOODPUT, "data_wait", "host_bound")
        lost = by(
            "sum", rate(training.GOODPUT_SECONDS, self.window.text, waits), *joins.NODE_LABELS
        )
        spent = by("sum", rate(training.GOODPUT_SECONDS, self.window.text), *joins.NODE_LABELS)
        late = by("max", joins.recent(recorded.LATENESS_RATIO, windows), *joins.NODE_LABELS)
        return f"{lost} / ({spent} > 0) > {self.harm_ratio:g} or {late} > {self.harm_ratio:g}"


class NodePressure(Condition):
    """Nodes under jobs that run out of memory, disk or process numbers.

    Attributes:
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
            eq(labels.RESOURCE, "memory"),
            eq(labels.PRESSURE, "some"),
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
        on_pod = f"on ({names(labels.NAMESPACE, labels.POD)})"
        news = f"{evicted} == 1 unless {on_pod} {seen_before} and on () ({by('group', pods)})"
        return by("group", news, labels.NAMESPACE, labels.POD)


_QUEUE = (labels.CLUSTER, labels.QUEUE)
_QUANTILE = 0.9


class QueueWait(Condition):
    """Queues in which one job in ten waits longer than ``above``, or none starts.

    Attributes:
        window: over which starts are counted, and in which one at least must be while jobs wait.
        least_starts: jobs that started within the window; fewer say nothing about nine of ten.
    """

    window: Window
    above: Window
    least_starts: Annotated[int, whole_number(0, 10_000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Wait in seconds by queue; 0 of a cluster in which jobs wait and none starts."""
        window = self.window.text
        wait = histogram_quantile(_QUANTILE, ledger.QUEUE_WAIT, window, *_QUEUE)
        starts = by("sum", increase(ledger.JOBS_STARTED, window), *_QUEUE)
        long = f"{wait} > {self.above.seconds} and {starts} > {self.least_starts - 0.5}"
        return f"{long}\nor\n0 * {nothing_starts(window)}"


class DataStarved(Condition):
    """Jobs whose ranks spend more than ``above_ratio`` of the wall clock waiting for data."""

    DETECTED_AFTER = "window"

    window: Window
    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the wall clock of a job's ranks spent waiting for data."""
        waited = rate(training.GOODPUT_SECONDS, self.window.text, eq(labels.GOODPUT, "data_wait"))
        spent = rate(training.GOODPUT_SECONDS, self.window.text)
        share = f"{by('sum', waited, *JOB_LABELS)} / ({by('sum', spent, *JOB_LABELS)} > 0)"
        return f"{share} > {self.above_ratio:g}"


class AllocatedIdle(Condition):
    """Jobs whose GPUs were used less than ``below_ratio`` on average for ``window``.

    Attributes:
        least_gpus: that are held: those of a notebook are its owner's.
    """

    DETECTED_AFTER = "window"

    GPU_FLOORS = ("least_gpus",)

    window: Window
    below_ratio: Ratio
    least_gpus: Annotated[int, whole_number(1, 1_000_000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Mean utilization of the GPUs that a job has held for the whole window."""
        busy = f"avg_over_time({select(gpu.GPU_UTILIZATION)}[{self.window}])"
        # A GPU that was allocated later has been another one's for a part of the window.
        owner = select(GPU_OWNER_INFO, has(labels.JOB_ID), eq(labels.MIG_UUID, ""))
        since = f"({owner} and {owner} offset {self.window})"
        held = by("group", since, *JOB_LABELS, labels.NODE, labels.UUID)
        share = f"{busy} * {GPU_JOIN} group_right () {held}"
        enough = f"{JOB_JOIN} ({by('count', held, *JOB_LABELS)} >= {self.least_gpus})"
        idle = f"{by('avg', share, *JOB_LABELS)} < {self.below_ratio:g}"
        return f"{idle} and {enough}\nunless {select_jobs_without_pages()}"


class DeadlineAtRisk(Condition):
    """Jobs that will miss their deadline at the pace of ``window``.

    Attributes:
        slack_ratio: of the time that is left, by which the forecast must miss it.
    """

    window: Window
    slack_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Seconds after the deadline at which each job will be done that is later than that.

        The tokens of earlier attempts may have been counted on other nodes, the steps are not
        lost: tokens so far are the step times tokens a step, and tokens a step are tokens a second
        times seconds a step.
        """
        pace = f"avg_over_time({select(recorded.TOKENS_RATE)}[{self.window}])"
        step_seconds = f"avg_over_time({select(recorded.STEP_MEAN)}[{self.window}])"
        spent = f"({by('max', select(training.STEP), *JOB_LABELS)} * {JOB_JOIN} {step_seconds})"
        declared = by("max", select(ledger.JOB_TOKENS), *JOB_LABELS)
        needed = f"({declared} / {JOB_JOIN} ({pace} > 0) - {JOB_JOIN} {spent})"
        left = f"({by('max', select(ledger.JOB_DEADLINE), *JOB_LABELS)} - time())"
        late = f"{needed} > {JOB_JOIN} ({1 + self.slack_ratio:g} * {left})"
        return f"({late}) - {JOB_JOIN} {left}\nand {select_training_jobs()}"


_RECORDED_SECONDS = 60  # slices of jobs are evaluated once a minute
_KEPT = "1d"


class WorkAtRisk(Condition):
    """Jobs whose productive work since the newest durable checkpoint is more than they can lose.

    Attributes:
        times_usual, least_hours: of the most that a checkpoint of the attempt has saved, and of
            the whole job, both of which it has to exceed.
        times_before, hours_before: the same of an attempt that has not written two, against what
            its first one or those of earlier attempts have saved.
        budget_hours, budget_gpu_hours: of the whole job and of its GPUs together, too much for
            any job that has never written one.
    """

    DETECTED_AFTER = _RECORDED_SECONDS

    times_usual: Annotated[float, number(1, 100)]
    least_hours: Annotated[float, number(0, 1e4)]
    times_before: Annotated[float, number(1, 100)]
    hours_before: Annotated[float, number(0, 1e4)]
    budget_hours: Annotated[float, number(0, 1e4)]
    budget_gpu_hours: Annotated[float, number(0, 1e9)]

    def expression(self, windows: ScrapeWindows) -> str:
        """GPU-hours of each job that are at risk."""
        at_risk = f"{recent(recorded.WORK_AT_RISK, windows, _RECORDED_SECONDS)} / 3600"
        usual = f"({recent(recorded.USUAL_AT_RISK, windows, _RECORDED_SECONDS)} > 0)"
        over = f"_over_time({select(recorded.USUAL_AT_RISK)}[{_KEPT}])"
        before = f"(max{over} > 0 or -1 * min{over})"
        gpus = by("max", select(training.WORLD_RANKS), *JOB_LABELS)

        def above(hours: float, times: float, saved: str) -> str:
            long_enough = f"{at_risk} > {JOB_JOIN} {hours:g} * {gpus}"
            return f"{long_enough} > {JOB_JOIN} {times / 3600:.6g} * {saved}"

        never = f"{at_risk} > {JOB_JOIN} {self.budget_hours:g} * {gpus} > {self.budget_gpu_hours:g}"
        return (
            f"({above(self.least_hours, self.times_usual, usual)}\nor\n"
            f"({above(self.hours_before, self.times_before, before)} unless {JOB_JOIN} {usual})\n"
            f"or\n({never} unless {JOB_JOIN} {before}))\n"
            f"unless {select_jobs_without_pages()}"
        )


class MonitorCost(Condition):
    """Jobs whose monitor takes more than ``above_ratio`` of the mean step."""

    DETECTED_AFTER = "window"

    window: Window
    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the mean step in the monitor's own calls, by the steps that it timed."""
        spent = by("sum", rate(training.MEASURED_SECONDS, self.window.text), *JOB_LABELS)
        steps = by("sum", rate(training.MEASURED_STEPS, self.window.text), *JOB_LABELS)
        share = f"{spent} / ({steps} > 0) / {JOB_JOIN} {recent(recorded.STEP_MEAN, windows)}"
        return f"{share} > {self.above_ratio:g}"
