"""Finds the stretches of steps in which one unit, a rank or a node, kept all others waiting.

A stretch counts when it is big (the margin is over a share of the step), lasting (in most steps of
a window) and no chance. For the last it must pass one of two sign tests, each corrected for every
place where a stretch could lie, so that the false alarms of a whole run stay under one stated
probability. One test asks whether the unit was over the threshold in more than half of the steps,
the other whether it was last more often than chance and than it usually is. Signs are tested, so
neither depends on how the noise is distributed.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.search.chance import tail_bound

# The usual share of last arrivals is estimated, so its upper bound is taken: three standard errors
# are passed by chance in about one case of 700.
_SIGMAS_OF_SHARE = 3.0
# Standard deviation of the share of turning points of n independent values, times sqrt(n): their
# number has the variance (16 n - 29) / 90 (Kendall and Stuart).
_SIGMA_OF_TURNS = math.sqrt(16 / 90)


FALSE_ALARM_PROBABILITY = 1e-3
"""Upper bound for naming anybody in a whole healthy run."""
WINDOW_STEPS = 10
"""Steps of the window in most of which lateness must hold; a judge needs two windows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Steps ``first`` to ``last`` (columns, both included) in which ``unit`` was late.

    Attributes:
        threshold: margin in seconds over which a step was late.
        num_late: late steps among the ``num_known`` ones.
        num_last: steps among them in which no other unit came later.
        num_known: steps whose margin is known.
        chance: upper bound of the probability of such a stretch anywhere in a healthy run.
        is_steady: late in most of the steps; else now and then.
    """

    unit: int
    first: int
    last: int
    threshold: float
    num_late: int
    num_last: int
    num_known: int
    chance: float = 1.0
    is_steady: bool = True

    @property
    def columns(self) -> slice:
        """The steps as a slice."""
        return slice(self.first, self.last + 1)

    @classmethod
    def between(
        cls,
        unit: int,
        ends: tuple[int, int],
        margin: Matrix,
        threshold: float,
        *,
        is_steady: bool = True,
    ) -> "Stretch":
        """The steps from one end to the other, counted by a margin: seconds, [units, steps]."""
        first, last = ends
        values = margin[unit, first : last + 1]
        return cls(
            unit=unit,
            first=first,
            last=last,
            threshold=threshold,
            num_late=int(np.count_nonzero(values > threshold)),
            num_last=int(np.count_nonzero(values > 0)),
            num_known=int(np.count_nonzero(~np.isnan(values))),
            is_steady=is_steady,
        )


def find_stretches(
    margin: Matrix, threshold: float, window: int, probability: float
) -> list[Stretch]:
    """All stretches of a window or more that pass every test, by unit and step.

    Args:
        margin: by how much each unit came after all others: seconds or a ratio, [units, steps];
            NaN where unknown.
        threshold: over which a step is late, in the same unit.
        window: steps in most of which a unit must be late.
        probability: upper bound for a stretch anywhere in a healthy run.
    """
    weight = independence(margin)
    stretches = []
    mostly_late = zip(*find_runs(_mostly(margin > threshold, window)), strict=True)
    for unit, first, last in _merge(mostly_late, window):
        ends = _refined(margin[unit], first, last, threshold, window)
        stretch = Stretch.between(unit, ends, margin, threshold)
        usual_share = _usual_share(margin[unit], stretch.columns, 2 * window)
        chance = _chance(stretch, usual_share, weight, margin.shape)
        is_long = stretch.last - stretch.first + 1 >= window
        if is_long and stretch.num_late * 2 >= stretch.num_known and chance <= probability:
            stretches.append(replace(stretch, chance=chance))
    return stretches


def _mostly(late: Flags, window: int) -> Flags:
    """Whether the window around each step is late in at least half of its steps [units, steps]."""
    before = window // 2
    padded = np.pad(late.astype(np.int32), ((0, 0), (before + 1, window - before - 1)))
    sums = np.cumsum(padded, axis=1)
    mostly: Flags = (sums[:, window:] - sums[:, :-window]) * 2 >= window
    return mostly


def find_runs(flags: Flags) -> tuple[Integers, Integers, Integers]:
    """Unit, first and last column of every run of true flags [units, steps], each [runs]."""
    edges = np.diff(np.pad(flags.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    units, firsts = np.nonzero(edges == 1)
    return units, firsts, np.nonzero(edges == -1)[1] - 1


def _merge(runs: Iterable[tuple[int, int, int]], gap: int) -> list[tuple[int, int, int]]:
    """Joins runs of one unit with no more than ``gap`` steps between them."""
    merged: list[tuple[int, int, int]] = []
    for unit, first, last in runs:
        goes_on = merged and merged[-1][0] == unit and first - merged[-1][2] <= gap
        begin = merged.pop()[1] if goes_on else first
        merged.append((int(unit), int(begin), int(last)))
    return merged


def _refined(
    margin: Matrix, first: int, last: int, threshold: float, window: int
) -> tuple[int, int]:
    """The first and the last late step, by a majority vote of a window of steps at each end.

    Margins are those of the unit [steps], of which the run's first and last may be a window off.
    """
    # Half of the stretch's own level separates its steps from quick ones better than a threshold
    # that a big fault passes by far.
    level = max(threshold, float(nan_stats.median(margin[first : last + 1])) / 2)
    votes = np.where(margin > level, 1, -1)
    low, high = max(0, first - window), min(last + 1, first + window)
    begin = low + _best_start(votes[low:high])
    low, high = max(begin, last + 1 - window), min(len(votes), last + 1 + window)
    end = high - 1 - _best_start(votes[low:high][::-1])
    return begin, max(begin, end)


def _best_start(votes: Integers) -> int:
    """Index from which the votes up to the end have the highest sum."""
    to_end = np.cumsum(votes[::-1])[::-1]
    return int(np.argmax(to_end))


def _chance(stretch: Stretch, usual_share: float, weight: float, shape: tuple[int, ...]) -> float:
    """The smaller probability of the two tests, each corrected for all places it could succeed in.

    A step is worth ``weight`` independent ones; ``shape`` counts units and steps.
    """
    num_units, num_steps = shape
    trials = stretch.num_known * weight
    # Null hypothesis of "steady": in a step the unit is late with a probability of at most one
    # half. Only one unit can hold back all others at a time, so two units at even odds are the
    # worst case for any noise, and the correction counts 2 units times all steps.
    steady = tail_bound(stretch.num_late * weight, trials, 0.5) * 2 * num_steps
    # Null hypothesis of "changed": the unit is last as often as elsewhere, or as chance has it
    # among exchangeable units, whichever is more. Any unit at any step could have started it.
    changed = tail_bound(stretch.num_last * weight, trials, max(usual_share, 1 / num_units))
    return min(1.0, steady, changed * num_units * num_steps)


def _usual_share(margin: Matrix, columns: slice, min_steps: int) -> float:
    """Upper bound of the share of steps outside a stretch in which a unit is last.

    1 when fewer than ``min_steps`` are known there; then the test "changed" cannot pass.
    """
    outside = np.delete(margin, columns)
    num_known = int(np.count_nonzero(~np.isnan(outside)))
    if num_known < min_steps:
        return 1.0
    share = float(np.count_nonzero(outside > 0)) / num_known
    return min(1.0, share + _SIGMAS_OF_SHARE * math.sqrt(share * (1 - share) / num_known))


def independence(margin: Matrix) -> float:
    """How many independent steps a step is worth: 1, and less where noise persists.

    Args:
        margin: [units, steps], NaN where unknown.

    Null hypothesis: the noise is independent from step to step; then a series turns in two steps
    of three. Assumed otherwise: first-order autoregression with correlation r, whose steps are
    worth (1 - r) / (1 + r) each; a random walk (r = 1) turns in every other step. An episode adds
    at most two turns, so unlike an autocorrelation the estimate is not moved by what is searched
    for.
    """
    change = np.diff(margin, axis=1)
    product = change[:, 1:] * change[:, :-1]
    num_known, num_turns = np.count_nonzero(product), np.count_nonzero(product < 0)
    num_known -= np.count_nonzero(np.isnan(product))
    if not num_known:
        return 1.0
    # One standard deviation is added, so that a short recording with independent noise is not
    # taken for a persistent one by chance.
    turn_share = num_turns / num_known + _SIGMA_OF_TURNS / math.sqrt(margin.shape[1])
    # For normal noise a series turns with probability arccos((r - 1) / 2) / pi.
    correlation = min(0.99, max(0.0, 1 + 2 * math.cos(math.pi * turn_share)))
    return (1 - correlation) / (1 + correlation)
