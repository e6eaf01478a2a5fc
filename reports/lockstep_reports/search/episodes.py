"""Finds the stretches of steps in which one unit, a rank or a node, kept all others waiting.

A stretch must be big (the margin is over a share of the step), last (in most steps of a window),
and be no chance: of two sign tests one must be passed, paid for every place where a stretch could
be, so that the false alarms of a whole run stay under one stated probability. One asks whether the
unit was over the threshold in more than half of the steps, the other whether it was last more
often than chance and than it usually is. Neither cares how the noise is distributed.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.search.chance import tail_bound

_SIGMAS_OF_SHARE = 3.0
# Of the share of turning points of n independent values, times sqrt(n).
_SIGMA_OF_TURNS = math.sqrt(16 / 90)


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """When lateness counts.

    Attributes:
        window_steps: lateness must hold in most of so many steps in a row.
        min_steps: runs of fewer synchronised steps are not judged.
        min_episode_steps: shorter stretches are no episode.
        min_effect_ratio: what a step must lose, as a share of the median step.
        false_alarm_probability: of naming anybody in a whole healthy run, at most.

    Raises:
        ValueError: a value is out of its range.
    """

    window_steps: int = 10
    min_steps: int = 20
    min_episode_steps: int = 5
    min_effect_ratio: float = 0.05
    false_alarm_probability: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 < self.window_steps <= self.min_steps // 2:
            raise ValueError(
                f"window_steps {self.window_steps} must be from 1 to half of min_steps"
            )
        if not 0 < self.false_alarm_probability < 1:
            raise ValueError(
                f"false_alarm_probability {self.false_alarm_probability} must be between 0 and 1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Steps ``first`` to ``last`` (places, both included) in which ``unit`` was late.

    Attributes:
        threshold: margin in seconds over which a step was late.
        late: in how many of the ``told`` steps it was.
        came_last: in how many of them no other unit came later.
        chance: upper bound of the probability of that anywhere in a healthy run.
        steady: late in most of the steps; else now and then.
    """

    unit: int
    first: int
    last: int
    threshold: float
    late: int
    came_last: int
    told: int
    chance: float = 1.0
    steady: bool = True

    @property
    def places(self) -> slice:
        """The steps as a slice."""
        return slice(self.first, self.last + 1)

    @classmethod
    def over(
        cls,
        unit: int,
        ends: tuple[int, int],
        margin: Matrix,
        threshold: float,
        *,
        steady: bool = True,
    ) -> "Stretch":
        """The steps from one end to the other, counted by a margin [units x steps], in seconds."""
        first, last = ends
        seen = margin[unit, first : last + 1]
        return cls(
            unit=unit,
            first=first,
            last=last,
            threshold=threshold,
            late=int(np.count_nonzero(seen > threshold)),
            came_last=int(np.count_nonzero(seen > 0)),
            told=int(np.count_nonzero(~np.isnan(seen))),
            steady=steady,
        )


def find_stretches(margin: Matrix, threshold: float, thresholds: Thresholds) -> list[Stretch]:
    """All stretches that pass every test, by unit and step."""
    window, weight = thresholds.window_steps, independence(margin)
    found = []
    for unit, first, last in _merge(_runs(_mostly(margin > threshold, window)), window):
        ends = _refined(margin[unit], first, last, threshold, window)
        stretch = Stretch.over(unit, ends, margin, threshold)
        usually = _usual_share(margin[unit], stretch.places, thresholds.min_steps)
        stretch = replace(stretch, chance=_chance(stretch, usually, weight, margin.shape))
        if _counts(stretch, thresholds):
            found.append(stretch)
    return found


def _counts(stretch: Stretch, thresholds: Thresholds) -> bool:
    return (
        stretch.last - stretch.first + 1 >= thresholds.min_episode_steps
        and stretch.late * 2 >= stretch.told
        and stretch.chance <= thresholds.false_alarm_probability
    )


def _mostly(late: Flags, window: int) -> Flags:
    """Whether the window around each step is late in at least half of its steps."""
    before = window // 2
    padded = np.pad(late.astype(np.int32), ((0, 0), (before + 1, window - before - 1)))
    sums = np.cumsum(padded, axis=1)
    mostly: Flags = (sums[:, window:] - sums[:, :-window]) * 2 >= window
    return mostly


def _runs(flags: Flags) -> list[tuple[int, int, int]]:
    """Unit, first and last place of every run of true flags."""
    edges = np.diff(np.pad(flags.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    units, firsts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    return [
        (int(unit), int(first), int(end) - 1)
        for unit, first, end in zip(units, firsts, ends, strict=True)
    ]


def _merge(runs: list[tuple[int, int, int]], gap: int) -> list[tuple[int, int, int]]:
    """Joins runs of one unit with no more than ``gap`` steps between them."""
    merged: list[tuple[int, int, int]] = []
    for unit, first, last in runs:
        if merged and merged[-1][0] == unit and first - merged[-1][2] <= gap:
            merged[-1] = (unit, merged[-1][1], last)
        else:
            merged.append((unit, first, last))
    return merged


def _refined(
    margin: Matrix, first: int, last: int, threshold: float, window: int
) -> tuple[int, int]:
    """The first and the last step over half the stretch's level, found by majority around them."""
    level = max(threshold, float(nan_stats.median(margin[first : last + 1])) / 2)
    votes = np.where(margin > level, 1, -1)
    low, high = max(0, first - window), min(last + 1, first + window)
    begin = low + _best_start(votes[low:high])
    low, high = max(begin, last + 1 - window), min(len(votes), last + 1 + window)
    end = high - 1 - _best_start(votes[low:high][::-1])
    return begin, max(begin, end)


def _best_start(votes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """Place from which on the votes to the end add up to most."""
    to_end = np.cumsum(votes[::-1])[::-1]
    return int(np.argmax(to_end))


def _chance(stretch: Stretch, usually: float, weight: float, shape: tuple[int, ...]) -> float:
    """The smaller chance of the two tests, each paid for all the places where it could succeed.

    Args:
        stretch: what is tested.
        usually: share of the steps in which the unit is last elsewhere.
        weight: independent steps that a step is worth.
        shape: units and steps that were looked at.
    """
    units, steps = shape
    trials = stretch.told * weight
    # Only one unit can hold back all others at a time, so two at even odds are the worst case.
    steady = tail_bound(stretch.late * weight, trials, 0.5) * 2 * steps
    changed = tail_bound(stretch.came_last * weight, trials, max(usually, 1 / units))
    return min(1.0, steady, changed * units * steps)


def _usual_share(margin: Matrix, places: slice, least: int) -> float:
    """Upper bound of the share in which a unit is last outside a stretch; 1 when too few tell."""
    outside = np.delete(margin, places)
    told = int(np.count_nonzero(~np.isnan(outside)))
    if told < least:
        return 1.0
    share = float(np.count_nonzero(outside > 0)) / told
    return min(1.0, share + _SIGMAS_OF_SHARE * math.sqrt(share * (1 - share) / told))


def independence(margin: Matrix) -> float:
    """How many independent steps a step is worth: 1, and less where noise drags on.

    Told from how often the margin turns, which no episode changes: two steps in three in
    independent noise, every other step in a random walk.
    """
    change = np.diff(margin, axis=1)
    product = change[:, 1:] * change[:, :-1]
    told, turned = np.count_nonzero(product), np.count_nonzero(product < 0)
    told -= np.count_nonzero(np.isnan(product))
    if not told:
        return 1.0
    turns = turned / told + _SIGMA_OF_TURNS / math.sqrt(margin.shape[1])
    correlation = min(0.99, max(0.0, 1 + 2 * math.cos(math.pi * turns)))
    return (1 - correlation) / (1 + correlation)
