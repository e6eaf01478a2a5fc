from lockstep_alerts.conditions.capacity.recovery_point import CheckpointStale
from lockstep_catalogue import training

from ..case import Case, proves
from ..synthetic import (
    JOB,
    Course,
    Samples,
    Stretch,
    Timing,
    growing,
    sample_node,
    steady,
)

_EVERY_SECONDS = 600  # between two checkpoints of the cases


@proves(CheckpointStale)
def checkpoint_stale(condition: CheckpointStale, timing: Timing) -> list[Case]:
    late = round(max(condition.at_least.seconds, condition.intervals * _EVERY_SECONDS))
    waits = timing.fires_within_seconds - condition.at_least.seconds + late + _EVERY_SECONDS
    at_seconds = 3 * _EVERY_SECONDS + waits
    soon = at_seconds - waits + late // 2
    stops = _job(at_seconds, 3, "training")
    return [
        Case("it stops to write", stops, JOB, at_seconds),
        Case("the next one is due", stops, None, soon),
        Case("it has ended", _job(at_seconds, 3, "done"), None, at_seconds),
        Case("it wrote one", _job(at_seconds, 0, "training"), None, at_seconds),
    ]


def _job(seconds: int, num_later: int, state: str) -> list[Samples]:
    """A job with a checkpoint at its start, and some more at equal distances."""
    pause, write = Stretch(_EVERY_SECONDS - 1, 0), Stretch(1, _EVERY_SECONDS)
    stretches = [each for _ in range(num_later) for each in (pause, write)]
    written: Course = growing(*stretches, Stretch(seconds, 0))
    return [
        sample_node(training.LAST_CHECKPOINT, written, job_id="j1"),
        sample_node(training.RANKS, steady(2, seconds), job_id="j1", state=state),
    ]
