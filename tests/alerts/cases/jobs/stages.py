from collections.abc import Mapping

from lockstep_alerts.conditions.jobs.stages import _MIN_HISTORY_SECONDS, StageSlowed, StageUneven
from lockstep_catalogue import training

from ..case import Case, proves
from ..synthetic import (
    HEALTHY,
    JOB,
    STAGES,
    Samples,
    Stretch,
    Timing,
    growing,
    ranks_late,
    samples,
    steady,
    training_job,
)

_SLOW_STAGE = 2
_Extra = Mapping[int, Mapping[str, float]]
"""Seconds a step by phase that each rank takes more."""


@proves(StageUneven)
def stage_uneven(condition: StageUneven, timing: Timing) -> list[Case]:
    seconds = timing.fires_by_seconds

    def job(ratio: float) -> list[Samples]:
        extra = {_SLOW_STAGE: {"backward": _extra_seconds(ratio)}}
        return training_job(ranks_late(seconds, extra), places=STAGES)

    stage = {**JOB, "pp": str(_SLOW_STAGE), "phase": "backward"}
    return [
        Case("one stage has more work", job(1.1 * condition.above_ratio), stage, seconds),
        Case("by less than that", job(0.8 * condition.above_ratio), None, seconds),
    ]


@proves(StageSlowed)
def stage_slowed(condition: StageSlowed, timing: Timing) -> list[Case]:
    extra = {_SLOW_STAGE: {"backward": _extra_seconds(1.2 * condition.above_ratio)}}
    slowed = {**JOB, "pp": "2", "rank": "2", "node": "n1", "phase": "backward"}
    at = _history_seconds(timing) + timing.fires_within_seconds
    return [
        Case("one stage slows", _slowing(timing, {}, extra), slowed, at),
        Case("it was always heavier", _slowing(timing, extra, extra), None, at),
    ]


def _extra_seconds(ratio: float) -> float:
    """Seconds a step of one rank that are this share of the step that they lengthen."""
    return sum(HEALTHY.values()) * ratio / (1 - ratio)


def _history_seconds(timing: Timing) -> int:
    """Long enough to have a usual work that a new one does not move."""
    return timing.onset_seconds + _MIN_HISTORY_SECONDS + timing.fires_within_seconds


def _slowing(timing: Timing, before: _Extra, after: _Extra) -> list[Samples]:
    slowing = training_job(
        ranks_late(_history_seconds(timing), before),
        ranks_late(timing.fires_within_seconds, after),
        places=STAGES,
    )
    # Another job, whose stage has two ranks, must not spoil the join.
    seconds = _history_seconds(timing) + timing.fires_within_seconds
    other = {"instance": "n1:9400", **JOB, "job_id": "j2"}
    for rank in ("0", "1"):
        info = samples(
            training.RANK_INFO, steady(1, seconds), **other, node="n1", pp="0", rank=rank
        )
        moves = growing(Stretch(seconds, 1))
        slowing += [info, samples(training.LAST_PROGRESS, moves, **other, rank=rank)]
    return slowing
