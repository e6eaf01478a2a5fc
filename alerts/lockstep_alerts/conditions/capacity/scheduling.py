"""The queue, preemptions and resumes of a whole cluster, by the ledger's counters."""

from dataclasses import dataclass
from typing import Annotated

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.synthetic import (
    Course,
    Samples,
    Stretch,
    Timing,
    growing,
    samples,
    steady,
)
from lockstep_alerts.reading.quantities import Ratio, Window, whole_number
from lockstep_catalogue import ledger
from lockstep_catalogue.labels import CLUSTER, QUEUE, RESTORE_OUTCOME
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import by, eq, histogram_quantile, increase, select
from lockstep_catalogue.windows import ScrapeWindows

_QUEUE = (CLUSTER, QUEUE)
_QUANTILE = 0.9
_NAMED = {"cluster": "c1", "queue": "q1"}
_GROUP = {"instance": "ledger:9450", **_NAMED, "project": "p1", "job_class": "pretraining"}


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueWait(Condition):
    """Queues in which one job in ten waits longer than ``above``, or none starts.

    Attributes:
        window: over which starts are counted, and in which one at least must be while jobs wait.
        above_seconds: the wait that nine of ten jobs stay below.
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
        pending = select(ledger.JOBS, eq(ledger.JOB_STATUS, "pending"))
        waiting = f"min_over_time({pending}[{window}]) > 0 and {pending} offset {window} > 0"
        stuck = f"{by('sum', increase(ledger.JOBS_STARTED, window), CLUSTER)} < 0.5"
        return f"{long}\nor\n{stuck} and on (cluster) {waiting}"

    def cases(self, timing: Timing) -> list[Case]:
        many = self.least_starts + 1
        stuck = _waits(timing, 0, 0, 3, self.window.seconds)
        later = timing.fires_by_seconds + self.window.seconds
        return [
            Case("jobs wait long", _waits(timing, many, many, 0), _NAMED),
            Case("none starts", stuck, {"cluster": "c1"}, later),
            Case("jobs start soon", _waits(timing, many, 0, 0)),
            Case("nothing waits", _waits(timing, 0, 0, 0)),
        ]


def _waits(
    timing: Timing, num_starts: int, num_long: int, pending: int, longer_seconds: int = 0
) -> list[Samples]:
    """A ledger that counts starts at the onset, some of them after a long wait."""

    def counted(number: int) -> Course:
        after_seconds = timing.fires_within_seconds + longer_seconds
        return growing(
            Stretch(timing.onset_seconds, 0), Stretch(1, number), Stretch(after_seconds, 0)
        )

    buckets = {"60.0": num_starts - num_long, "86400.0": num_starts, "+Inf": num_starts}
    lasting = steady(pending, timing.fires_by_seconds + longer_seconds)
    return [
        *(
            samples(ledger.QUEUE_WAIT, counted(count), "_bucket", **_GROUP, le=bound)
            for bound, count in buckets.items()
        ),
        samples(ledger.JOBS_STARTED, counted(num_starts), **_GROUP),
        samples(ledger.JOBS, lasting, instance="ledger:9450", cluster="c1", job_status="pending"),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionLoss(Condition):
    """Queues in which preemptions lose more than ``above_ratio`` of the GPU time.

    Attributes:
        window: over which the loss is taken.
        above_ratio: GPU time that preemptions threw away, of all that was allocated.
    """

    window: Window
    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the allocated GPU time that was lost by preemptions, by queue."""

        def increase_by_queue(metric: Metric) -> str:
            return by("sum", increase(metric, self.window.text), *_QUEUE)

        lost, spent = (
            increase_by_queue(ledger.PREEMPTION_LOST),
            increase_by_queue(ledger.GPU_SECONDS),
        )
        preempted = increase_by_queue(ledger.PREEMPTIONS)
        return f"{lost} / ({spent} > 0) > {self.above_ratio:g} and {preempted} > 1.5"

    def cases(self, timing: Timing) -> list[Case]:
        def ledger_of(num_preempted: int, lost_ratio: float) -> list[Samples]:
            values = {
                ledger.PREEMPTIONS: num_preempted,
                ledger.PREEMPTION_LOST: 1e6 * lost_ratio,
                ledger.GPU_SECONDS: 1e6,
            }
            state = {ledger.GPU_SECONDS: {"goodput": "productive"}}
            return [
                samples(metric, timing.steps_up(value), **_GROUP, **state.get(metric, {}))
                for metric, value in values.items()
            ]

        much, little = 2 * self.above_ratio, self.above_ratio / 2
        return [
            Case("they lose much", ledger_of(5, much), _NAMED),
            Case("they lose little", ledger_of(5, little)),
            Case("it was one", ledger_of(1, much)),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumedOlder(Condition):
    """Queues in which a job resumed from an older checkpoint within ``window``.

    Attributes:
        window: within which a resume counts.
    """

    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Resumes by queue that had to pass over a newer checkpoint."""
        older = increase(ledger.RESUMES, self.window.text, eq(RESTORE_OUTCOME, "fallback"))
        return f"{by('sum', older, *_QUEUE)} > 0.5"

    def cases(self, timing: Timing) -> list[Case]:
        def resumed(outcome: str) -> list[Samples]:
            course = timing.steps_up()
            return [samples(ledger.RESUMES, course, **_GROUP, restore=outcome)]

        return [
            Case("it passed over the newest", resumed("fallback"), _NAMED),
            Case("it took the newest", resumed("ok")),
        ]
