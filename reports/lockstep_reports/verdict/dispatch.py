"""Picks the judge of a recording by what it holds: steps, collectives or dumps."""

from dataclasses import replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.recording.collectives import CollectiveLog
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.align import Alignment
from lockstep_reports.search.score import Scores, score
from lockstep_reports.search.stretches import WINDOW_STEPS
from lockstep_reports.verdict.hang import judge_hang
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.own_times import judge_own_times
from lockstep_reports.verdict.verdict import Episode, Verdict

# A profiler trace holds few collectives, and a Prometheus few slots of time. The bound on false
# alarms holds at any number of steps, so shorter windows only lose sensitivity.
_SHORT_WINDOW_STEPS = 5


def judge_recording(recording: Recording, scores: Scores) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict and its episodes."""
    if recording.flight_recorder_log is not None:
        return judge_hang(recording.flight_recorder_log), ()
    if recording.own_times:
        return judge_own_times(recording.steps)
    if recording.collectives is not None:
        return _judge_collectives(recording.steps, recording.collectives), ()
    are_means = recording.steps.stands_for is not None
    return judge(recording.steps, scores, _SHORT_WINDOW_STEPS if are_means else WINDOW_STEPS)


def _judge_collectives(steps: Steps, log: CollectiveLog) -> Verdict:
    """Judges every collective as a step of its own: the late rank has the shortest one."""
    rows = [steps.ranks.index(rank) for rank in log.ranks]
    unknown = np.full(log.seconds.shape, np.nan)
    samples = replace(
        steps,
        members=tuple(steps.members[row] for row in rows),
        numbers=np.arange(log.seconds.shape[1]),
        seconds=np.where(np.isnan(log.between), log.seconds, log.between),
        phases={name: np.zeros_like(unknown) for name in steps.phases} | {"sync": log.seconds},
        start=unknown,
        first_arrival=unknown,
        last_arrival=unknown,
        loss=unknown,
    )
    if len(log.ranks) <= 1:
        why = "No collective was recorded by two ranks or more; lateness needs that."
        return Verdict(kind="unknown", evidence=(why,))
    verdict = judge(samples, score(samples), _SHORT_WINDOW_STEPS)[0]
    if verdict.kind == "nobody" and len(steps.missing_ranks) > len(steps.members):
        why = "None of the ranks that were read is slow, but most ranks were not read."
        return Verdict(kind="unknown", evidence=(why, *verdict.evidence))
    return verdict


def align_by_collectives(alignment: Alignment, log: CollectiveLog | None) -> Alignment:
    """The alignment with the clocks of the collectives, by rank, where there are any."""
    if log is None:
        return alignment
    return replace(
        alignment,
        offsets={f"rank {rank}": seconds for rank, seconds in log.offsets.items()},
        drifts={f"rank {rank}": rate for rank, rate in log.drifts.items()},
        residual_seconds=nan_stats.median_number(log.residual) if log.items else None,
        residual_p95_seconds=nan_stats.quantile_number(log.residual, 0.95) if log.items else None,
    )
