"""The queue, preemptions and resumes of a whole cluster, by the ledger's counters."""

from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Timing
from lockstep_alerts.conditions.immediate import Immediate, Outline, steps_up
from lockstep_alerts.entry import Entry
from lockstep_alerts.model import Duration
from lockstep_alerts.synthetic import Course, Samples, Stretch, growing, samples, steady
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
class QueueWait(Immediate):
    """Limits of the condition.

    Attributes:
        window: over which starts are counted, and in which one at least must be while jobs wait.
        above_seconds: the wait that nine of ten jobs stay below.
        least_starts: jobs that started within the window; fewer say nothing about nine of ten.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("window", "above", "least_starts")
    window: Duration
    above: Duration
    least_starts: int

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry."""
        return cls(
            window=entry.window("window"),
            above=entry.window("above"),
            least_starts=round(entry.number("least_starts", 0, 10_000)),
        )

    def expression(self, windows: ScrapeWindows) -> str:
        """Wait in seconds by queue; 0 of a cluster in which jobs wait and none starts."""
        del windows
        window = self.window.text
        wait = histogram_quantile(_QUANTILE, ledger.QUEUE_WAIT, window, *_QUEUE)
        starts = by("sum", increase(ledger.JOBS_STARTED, window), *_QUEUE)
        long = f"{wait} > {self.above.seconds} and {starts} > {self.least_starts - 0.5}"
        pending = select(ledger.JOBS, eq(ledger.JOB_STATUS, "pending"))
        waiting = f"min_over_time({pending}[{window}]) > 0 and {pending} offset {window} > 0"
        stuck = f"{by('sum', increase(ledger.JOBS_STARTED, window), CLUSTER)} < 0.5"
        return f"{long}\nor\n{stuck} and on (cluster) {waiting}"

    def outlines(self, timing: Timing) -> list[Outline]:
        """Jobs wait long, none starts while some wait; they start soon; the queue is empty."""
        many = self.least_starts + 1
        stuck = _waits(timing, 0, 0, 3, self.window.seconds)
        later = timing.fires_by_seconds + self.window.seconds
        return [
            Outline("jobs wait long", _waits(timing, many, many, 0), _NAMED),
            Outline("none starts", stuck, {"cluster": "c1"}, later),
            Outline("jobs start soon", _waits(timing, many, 0, 0)),
            Outline("nothing waits", _waits(timing, 0, 0, 0)),
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
class PreemptionLoss(Immediate):
    """Limits of the condition.

    Attributes:
        window: over which the loss is taken.
        above_ratio: GPU time that preemptions threw away, of all that was allocated.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("window", "above_ratio")
    window: Duration
    above_ratio: float

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry."""
        return cls(window=entry.window("window"), above_ratio=entry.number("above_ratio", 0, 1))

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the allocated GPU time that was lost by preemptions, by queue."""
        del windows

        def over_window(metric: Metric) -> str:
            return by("sum", increase(metric, self.window.text), *_QUEUE)

        lost, spent = over_window(ledger.PREEMPTION_LOST), over_window(ledger.GPU_SECONDS)
        preempted = over_window(ledger.PREEMPTIONS)
        return f"{lost} / ({spent} > 0) > {self.above_ratio:g} and {preempted} > 1.5"

    def outlines(self, timing: Timing) -> list[Outline]:
        """Preemptions that lose much and little, and a single one."""

        def ledger_of(num_preempted: int, lost_ratio: float) -> list[Samples]:
            values = {
                ledger.PREEMPTIONS: num_preempted,
                ledger.PREEMPTION_LOST: 1e6 * lost_ratio,
                ledger.GPU_SECONDS: 1e6,
            }
            state = {ledger.GPU_SECONDS: {"goodput": "productive"}}
            return [
                samples(metric, steps_up(timing, to=value), **_GROUP, **state.get(metric, {}))
                for metric, value in values.items()
            ]

        much, little = 2 * self.above_ratio, self.above_ratio / 2
        return [
            Outline("they lose much", ledger_of(5, much), _NAMED),
            Outline("they lose little", ledger_of(5, little)),
            Outline("it was one", ledger_of(1, much)),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumedOlder(Immediate):
    """Limits of the condition.

    Attributes:
        window: within which a resume counts.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("window",)
    window: Duration

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry."""
        return cls(window=entry.window("window"))

    def expression(self, windows: ScrapeWindows) -> str:
        """Resumes by queue that had to pass over a newer checkpoint."""
        del windows
        older = increase(ledger.RESUMES, self.window.text, eq(RESTORE_OUTCOME, "fallback"))
        return f"{by('sum', older, *_QUEUE)} > 0.5"

    def outlines(self, timing: Timing) -> list[Outline]:
        """A resume from an older checkpoint, and one from the newest."""

        def resumed(outcome: str) -> list[Samples]:
            course = growing(
                Stretch(timing.onset_seconds, 0),
                Stretch(1, 1),
                Stretch(timing.fires_within_seconds, 0),
            )
            return [samples(ledger.RESUMES, course, **_GROUP, restore=outcome)]

        return [
            Outline("it passed over the newest", resumed("fallback"), _NAMED),
            Outline("it took the newest", resumed("ok")),
        ]
