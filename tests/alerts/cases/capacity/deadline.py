from lockstep_alerts.conditions.capacity.deadline import DeadlineAtRisk
from lockstep_catalogue import ledger, recorded, training

from ..case import Case, proves
from ..synthetic import (
    JOB,
    Samples,
    Timing,
    sample_node,
    samples,
    steady,
    trains,
)

_TOKENS_A_SECOND, _STEP_SECONDS = 1e5, 10.0
_STEP = 1000


@proves(DeadlineAtRisk)
def deadline_at_risk(condition: DeadlineAtRisk, timing: Timing) -> list[Case]:
    late = _job(timing, 0.5)
    return [
        Case("it will be late", late, JOB),
        Case("it will be in time", _job(timing, 2)),
        Case("it has no deadline", late[:-1]),
    ]


def _job(timing: Timing, left_ratio: float) -> list[Samples]:
    """A job that needs a day more, with so many times a day left."""
    lasting, day_seconds = timing.fires_by_seconds, 86_400
    declared = _TOKENS_A_SECOND * (_STEP * _STEP_SECONDS + day_seconds)
    of_ledger = {"instance": "ledger:9450", **JOB}
    deadline = steady(lasting + day_seconds * left_ratio, lasting)
    return [
        trains(timing, 8),
        samples(recorded.TOKENS_RATE, steady(_TOKENS_A_SECOND, lasting), **JOB),
        samples(recorded.STEP_MEAN, steady(_STEP_SECONDS, lasting), **JOB),
        sample_node(training.STEP, steady(_STEP, lasting), job_id="j1"),
        samples(ledger.JOB_TOKENS, steady(declared, lasting), **of_ledger),
        samples(ledger.JOB_DEADLINE, deadline, **of_ledger),
    ]
