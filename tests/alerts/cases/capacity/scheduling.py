from lockstep_alerts.conditions.capacity.scheduling import PreemptionLoss, QueueWait, ResumedOlder
from lockstep_catalogue import ledger

from ..case import Case, proves
from ..synthetic import (
    Course,
    Samples,
    Stretch,
    Timing,
    growing,
    samples,
    steady,
)

_NAMED = {"cluster": "c1", "queue": "q1"}
_GROUP = {"instance": "ledger:9450", **_NAMED, "project": "p1", "job_class": "pretraining"}


@proves(QueueWait)
def queue_wait(condition: QueueWait, timing: Timing) -> list[Case]:
    many = condition.least_starts + 1
    stuck = _waits(timing, 0, 0, 3, condition.window.seconds)
    later = timing.fires_by_seconds + condition.window.seconds
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


@proves(PreemptionLoss)
def preemption_loss(condition: PreemptionLoss, timing: Timing) -> list[Case]:
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

    much, little = 2 * condition.above_ratio, condition.above_ratio / 2
    return [
        Case("they lose much", ledger_of(5, much), _NAMED),
        Case("they lose little", ledger_of(5, little)),
        Case("it was one", ledger_of(1, much)),
    ]


@proves(ResumedOlder)
def resumed_older(condition: ResumedOlder, timing: Timing) -> list[Case]:
    def resumed(outcome: str) -> list[Samples]:
        course = timing.steps_up()
        return [samples(ledger.RESUMES, course, **_GROUP, restore=outcome)]

    return [
        Case("it passed over the newest", resumed("fallback"), _NAMED),
        Case("it took the newest", resumed("ok")),
    ]
