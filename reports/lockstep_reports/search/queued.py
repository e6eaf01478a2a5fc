"""Ranks that were late because others had their cores: what is left of their work is their own."""

from typing import NamedTuple

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores, excess

_MIN_EXPLAINED_SHARE = 0.5  # of the lateness; less leaves a cause of equal size
# A rank with three quarters of the others' speed, a third more work, is NVRx's straggler on any
# host; less than that leaves room for noise in what is left of its work.
_MAX_LEFT_RATIO = 1 / 4
# Of what a rank waits. In five of 51 healthy runs, whose ranks waited for cores in 15 to 69 % of
# the time, one rank lost up to 9 % of these waits by its own work, and in one 22 %.
_MAX_LOST_BESIDE = 0.1


def is_crowded(steps: Steps) -> bool:
    """Whether waits for a core make up a share of the run in which they may hide who is slow."""
    return queued_ratio(steps) >= MIN_EFFECT_RATIO


def queued_ratio(steps: Steps) -> float:
    """Share of all recorded time in which ranks waited for a core, in collectives too."""
    total = float(np.nansum(steps.seconds))
    return _queued_seconds(steps) / total if total > 0 else 0.0


def tolerated_loss_seconds(steps: Steps) -> float:
    """Seconds that a healthy rank may lose by its own work where other processes take its cores."""
    return _MAX_LOST_BESIDE * _queued_seconds(steps) / len(steps.members)


def _queued_seconds(steps: Steps) -> float:
    return 0.0 if steps.run_queue is None else float(np.nansum(steps.run_queue))


class Late(NamedTuple):
    """Rows that were late, in these columns, of which those are late ones.

    Attributes:
        margin: by how much they came after all others in the late columns: seconds [late]; None
            where they were found in their work.
    """

    rows: list[int]
    columns: slice
    late_columns: Integers
    margin: Matrix | None


def is_queued(steps: Steps, scores: Scores, late: Late) -> bool:
    """Whether waits for a core explain a lateness, and not the rank's own work.

    They do where they are half of it, or where the host is crowded and the rank did not sleep,
    unless what is left is a straggler's share more than the others' work: who takes cores takes
    caches too, and threads that nobody reads share them.
    """
    if steps.run_queue is None:
        return False
    waits, rows = steps.run_queue[:, late.late_columns], late.rows
    queued = float(nan_stats.mean(excess(waits, rows)))
    # Unknown waits make all of these NaN, and no comparison true.
    if late.margin is None:
        work = np.where(np.isnan(waits), np.nan, scores.own_work[:, late.late_columns])
        longer = float(nan_stats.mean(excess(work, rows)))
        is_by_waits = queued >= _MIN_EXPLAINED_SHARE * longer
    else:
        longer = float(nan_stats.mean(late.margin))
        if queued >= _MIN_EXPLAINED_SHARE * longer:
            return True
        is_by_waits = False
    has_device = late.margin is not None and any(member.gpu_uuid for member in steps.members)
    is_awake = not _is_asleep(steps, late, _MIN_EXPLAINED_SHARE * longer)
    is_by_crowd = is_crowded(steps) and not has_device and is_awake
    return (is_by_waits or is_by_crowd) and not is_longer(scores.own_work - steps.run_queue, late)


def _is_asleep(steps: Steps, late: Late, seconds: float) -> bool:
    """Whether rows sleep so many seconds a step longer than others, or nobody knows it."""
    if steps.blocked is None:
        return True
    slept = nan_stats.mean(excess(steps.blocked[:, late.late_columns], late.rows))
    return not float(slept) < seconds


def is_longer(work: Matrix, late: Late) -> bool:
    """Whether work [ranks, steps] is longer by a straggler's share in a stretch."""
    inside, rows = work[:, late.columns], late.rows
    usual = float(np.nansum(nan_stats.median(np.delete(inside, rows, axis=0), axis=0)))
    longer = excess(inside, rows)
    # Without the longest, which may be the first of the run, with all that is done once.
    return float(np.nansum(longer) - nan_stats.highest(longer, axis=0)) > _MAX_LEFT_RATIO * usual
