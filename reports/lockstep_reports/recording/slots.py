"""Steps of ranks that wait for no other, in slots of the clock, which hold what slows a machine.

The n-th step of such a rank is at another time than the n-th of the others.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps

# A slot of the clock holds a step of the slowest rank, or a 60th of the run: a fault of a third of
# it then fills a window of the search.
_MIN_SLOTS = 60
_WARM_UP_STEPS = 5  # the first of any job are long, and fill many slots


def measure_paces(steps: Steps, rows: Sequence[int], own: Matrix) -> tuple[Steps, Matrix]:
    """Seconds a step of some ranks in slots of the clock, and their updates in them [ranks, slots].

    The number of a slot is the furthest step of any rank. Of each step ``own`` counts: seconds,
    [ranks, steps].
    """
    curves = [_progress_curve(steps, row, own[row]) for row in rows]
    edges = _choose_edges([curve[0] for curve in curves])
    at_edges = np.array(
        [
            [np.interp(edges, clock, values, left=np.nan, right=np.nan) for values in sums]
            for clock, *sums in curves
        ]
    )
    updates, seconds = np.diff(at_edges[:, 0]), np.diff(at_edges[:, 1])
    # A rank that has ended stays the furthest.
    furthest = np.maximum.accumulate(np.ceil(nan_stats.highest(at_edges[:, 2, 1:], axis=0)))
    members = tuple(steps.members[row] for row in rows)
    numbers = furthest.astype(np.int64)
    return replace(steps, members=members, numbers=numbers, seconds=seconds / updates), updates


def _progress_curve(steps: Steps, row: int, own: Matrix) -> Matrix:
    """Clock, updates, own seconds and step of a rank at each end of a step [4, ends]."""
    columns = np.flatnonzero(~np.isnan(steps.seconds[row]))
    columns = columns[min(_WARM_UP_STEPS, len(columns) // _MIN_SLOTS) :]
    begins, seconds = steps.start[row, columns], steps.seconds[row, columns]
    counts = np.arange(1.0, len(columns) + 1)
    ends = np.stack([begins + seconds, counts, own[columns].cumsum(), steps.numbers[columns]])
    return np.column_stack([[begins[0], 0, 0, 0], ends])


def _choose_edges(clocks: Sequence[Matrix]) -> Matrix:
    """Wall clock at the edges of the slots, by each rank's begin and ends of steps."""
    begin, end = min(clock[0] for clock in clocks), max(clock[-1] for clock in clocks)
    slowest = max((clock[-1] - clock[0]) / (len(clock) - 1) for clock in clocks)
    most = max(len(clock) for clock in clocks) - 1
    return np.linspace(begin, end, min(most, max(_MIN_SLOTS, int((end - begin) / slowest))) + 1)
