"""Finds the steps in which a unit was late, however few: at once, again and again, or to the end.

Late steps are collected into stretches. Each must be no chance by a test that assumes nothing of
how the noise is distributed, corrected for every unit and every stretch that was possible:

* always: the unit was late in more than half of the steps. Only one unit of a kind can be late in
  a step, so even odds are the worst that chance can do.
* changed: the unit's late steps lie inside the stretch and not elsewhere (Fisher's exact test).
* recurrent: of the steps in which any unit was late, it was this one too often.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.search.chance import fisher_tail, tail_bound

FALSE_ALARM_PROBABILITY = 1e-3
"""Upper bound for naming anybody in a whole healthy run."""
WINDOW_STEPS = 10
"""Steps of the window in most of which lateness must hold; a judge needs two windows."""

# A stretch goes on while its late steps, worth 1 each, outweigh all its steps at this price: so a
# steady one is late in at least half of its steps, a recurrent one in at least a tenth, a sparse
# one in at least one of 25, a rare one in one of 66: a stop of the process now and then, where
# steps are of milliseconds. A fault that strikes in each third step is recurrent.
_STEADY_PRICE, _RECURRENT_PRICE, _SPARSE_PRICE, _RARE_PRICE = 0.5, 0.1, 0.04, 0.015
# Sparse and rare stretches go on over gaps so many times as long.
_SPARSE_GAPS, _RARE_GAPS = 3, 8
# Fewer late steps are not worth a test: three of them have at best the corrected probability
# 30 * units / steps by Fisher's test, too much in runs of up to 100,000 steps.
_MIN_STEADY, _MIN_RECURRENT = 4, 6
# A big fault is searched for above the noise that hides it: at so many times the threshold. Every
# level is one more chance of a false alarm, which _find_at corrects for.
_LEVELS = (1.0, 1.4, 2.5, 8.0, 50.0)
# Share of the false alarm probability for stretches that last to the end: they are few (one per
# first step, not one per pair of steps), and they are what people ask about (decision 9).
_SHARE_TO_THE_END = 0.5
# A fault that comes and goes from the first step to the last has one place only. Few hits must do
# for it: one in 20 steps makes ten in 200, and more than one of four ranks has each by chance.
_SHARE_OF_ALL = 0.25


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What counts as late, and which tests may be passed.

    Attributes:
        threshold: margin over which a step is late, in seconds.
        min_mean_loss: what a recurrent stretch must lose, in seconds per step on average.
        gap: number of steps without a late one that ends a stretch.
        weight: independent steps that a step is worth.
        false_alarm_probability: upper bound for a stretch anywhere in a healthy run.
        always: whether being late from the beginning may count.
        changed: whether being late in one part of the recording may count.
        recurrent: whether being late now and then may count.
        num_candidates: number of units that the recording itself chose the searched ones from;
            0 when they were given beforehand.
    """

    threshold: float
    min_mean_loss: float
    gap: int
    weight: float = 1.0
    false_alarm_probability: float = FALSE_ALARM_PROBABILITY
    always: bool = True
    changed: bool = True
    recurrent: bool = False
    num_candidates: float = 0.0


def find_late(margin: Matrix, search: Search) -> list[Stretch]:
    """All stretches that pass a test, by unit and step.

    Args:
        margin: by how much each unit came after all others: seconds, [units, steps]; NaN where
            unknown.
        search: what to search for.
    """
    stretches: list[Stretch] = []
    found, remaining = _find_once(margin, search), margin
    while found:
        stretches += found
        # A fault that was found is not usual for the unit: the rest is tested without it.
        remaining = remaining.copy()
        for stretch in found:
            remaining[stretch.unit, stretch.columns] = np.nan
        units = {stretch.unit for stretch in found}
        found = [other for other in _find_once(remaining, search) if other.unit in units]
    return sorted(stretches, key=lambda stretch: (stretch.unit, stretch.first))


def _find_once(margin: Matrix, search: Search) -> list[Stretch]:
    """Stretches that pass a test at some level, none of which share a step of a unit."""
    stretches: list[Stretch] = []
    for level in _LEVELS:
        at_level = replace(search, threshold=search.threshold * level)
        # Of two ways in which the same steps come and go, the one that chance explains least.
        found = sorted(_find_at(margin, at_level), key=lambda s: s.chance * (not s.is_steady))
        for stretch in found:
            if not is_among(stretches, stretch):
                stretches.append(stretch)
    return stretches


def is_among(stretches: Iterable[Stretch], stretch: Stretch) -> bool:
    """Whether a stretch shares a step with another one of its unit."""
    return any(stretch.unit == other.unit and overlaps(stretch, other) for other in stretches)


def overlaps(stretch: Stretch, other: Stretch) -> bool:
    """Whether two stretches share a step."""
    return stretch.first <= other.last and other.first <= stretch.last


def _find_at(margin: Matrix, search: Search) -> Iterator[Stretch]:
    """Stretches over one threshold whose chance, corrected for all levels, is small enough."""
    late = margin > search.threshold
    any_late: Flags = np.asarray(late.any(axis=0))
    kinds = [(True, _STEADY_PRICE, _MIN_STEADY, search.gap)]
    if search.recurrent:
        kinds.append((False, _RECURRENT_PRICE, _MIN_RECURRENT, search.gap))
        kinds.append((False, _SPARSE_PRICE, _MIN_RECURRENT, _SPARSE_GAPS * search.gap))
        kinds.append((False, _RARE_PRICE, _MIN_RECURRENT, _RARE_GAPS * search.gap))
    for unit in np.flatnonzero(late.sum(axis=1) >= _MIN_STEADY).tolist():
        late_columns = np.flatnonzero(late[unit])
        for is_steady, price, min_count, gap in kinds:
            for first, last, count in collect_late(late_columns, price, gap):
                if count < min_count:
                    continue
                ends = _refined(margin[unit], first, last, search) if is_steady else (first, last)
                stretch = Stretch.between(unit, ends, margin, search.threshold, is_steady=is_steady)
                chance = len(_LEVELS) * _chance(stretch, late, any_late, margin, search)
                if chance <= search.false_alarm_probability:
                    yield replace(stretch, chance=chance)


def collect_late(late_columns: Integers, price: float, gap: int) -> Iterator[tuple[int, int, int]]:
    """First and last late step of each stretch, and its number of late steps.

    Args:
        late_columns: the late steps, ascending [late steps].
        price: of every step of a stretch; a late one gives 1 for it.
        gap: number of steps without a late one that ends a stretch.
    """
    begin = last = -1
    score, count = 0.0, 0
    for column in late_columns.tolist():
        remaining = score - price * (column - last - 1)
        if begin < 0 or column - last > gap or remaining <= 0:
            if begin >= 0:
                yield begin, last, count
            begin, remaining, count = column, 0.0, 0
        score, last, count = remaining + 1 - price, column, count + 1
    if begin >= 0:
        yield begin, last, count


def _refined(margin: Matrix, first: int, last: int, search: Search) -> tuple[int, int]:
    """The ends of the largest stretch inside that is over half of the stretch's own level.

    A big fault's neighbours may pass the threshold by noise; half of its level they do not.
    """
    inside = margin[first : last + 1]
    level = float(np.median(inside[inside > search.threshold])) / 2
    late_columns = np.flatnonzero(inside > max(level, search.threshold))
    parts = collect_late(late_columns, _STEADY_PRICE, search.gap)
    begin, end, _ = max(parts, key=lambda part: part[2])
    return first + begin, first + end


def _chance(
    stretch: Stretch, late: Flags, any_late: Flags, margin: Matrix, search: Search
) -> float:
    """The smallest probability of the tests that apply, each corrected for all it could pass on.

    Flags say which steps are late [units, steps], and in which any unit is [steps].
    """
    num_units, num_steps = margin.shape
    num_candidates = max(1.0, search.num_candidates)
    chances = [1.0]
    if stretch.is_steady and search.always:
        chances.append(_chance_of_always(stretch, search) * 2 * num_steps * num_candidates)
    if stretch.is_steady and not search.changed:
        return min(chances)
    # A recurrent stretch must lose enough per step, spread over all its steps.
    values = margin[stretch.unit, stretch.columns]
    lost = float(values[values > search.threshold].sum())
    if not stretch.is_steady and lost < search.min_mean_loss * stretch.num_known:
        return 1.0
    # A stretch is any pair of steps, or any first step if it lasts to the end; each kind gets its
    # share of the false alarm probability.
    share_of_all = 0.0 if stretch.is_steady else _SHARE_OF_ALL
    num_anywhere = num_steps * num_steps / 2 / (1 - _SHARE_TO_THE_END - share_of_all)
    num_to_the_end = num_steps / _SHARE_TO_THE_END
    for last, num_stretches in ((stretch.last, num_anywhere), (num_steps - 1, num_to_the_end)):
        inside = slice(stretch.first, last + 1)
        if stretch.is_steady:
            chance = _chance_of_change(stretch, inside, late, margin, search)
        else:
            chance = _chance_of_recurrence(stretch, inside, late, any_late, search)
        chances.append(chance * num_stretches * num_units * num_candidates)
    if not stretch.is_steady:
        # The same for the hits of a stretch among those of all steps: a part of them proves less.
        trials = np.count_nonzero(any_late) * search.weight
        chance = tail_bound(stretch.num_late * search.weight, trials, 1 / num_units)
        chances.append(chance * num_units * num_candidates / _SHARE_OF_ALL)
    return min(chances)


def _chance_of_always(stretch: Stretch, search: Search) -> float:
    """Whether the unit was late in more than half of the steps.

    Null hypothesis: late in a step with a probability of at most one half, the most that two units
    which are always last can share. So 2 units times all first steps could pass.
    """
    hits = stretch.num_late - bool(search.num_candidates)
    return tail_bound(hits * search.weight, stretch.num_known * search.weight, 0.5)


def _chance_of_change(
    stretch: Stretch, inside: slice, late: Flags, margin: Matrix, search: Search
) -> float:
    """Fisher's exact test: does the unit's lateness concentrate inside the stretch?

    Hits are those of the stretch: one that is tested to the end of the run must reach it by itself,
    and not by a later fault of the same unit.

    Null hypothesis: the unit's late steps lie anywhere with equal probability. Assumed:
    a step is worth ``weight`` independent ones, and nothing else of the noise. Counts are scaled
    by the weight and rounded so that the probability becomes larger, never smaller.
    """
    unit = stretch.unit
    is_known = ~np.isnan(margin[unit])
    num_inside, num_known = np.count_nonzero(is_known[inside]), np.count_nonzero(is_known)
    hits, all_hits = np.count_nonzero(late[unit, stretch.columns]), np.count_nonzero(late[unit])
    hits_outside = int(all_hits - hits)
    hits -= bool(search.num_candidates)  # the step that chose the unit proves nothing
    steps_inside = int(num_inside * search.weight)
    steps_outside = int((num_known - num_inside) * search.weight)
    scaled_hits = min(steps_inside, int(hits * search.weight))
    scaled_outside = min(steps_outside, -int(-hits_outside * search.weight // 1))
    return fisher_tail(
        scaled_hits, steps_inside, scaled_hits + scaled_outside, steps_inside + steps_outside
    )


def _chance_of_recurrence(
    stretch: Stretch, inside: slice, late: Flags, any_late: Flags, search: Search
) -> float:
    """Whether of the steps in which any unit was late, it was this one too often.

    Null hypothesis: whichever unit is late in a step, each is it with the same probability 1 / n.
    Assumed: the units' noise is exchangeable. It is not where hosts differ, so a recurrent stretch
    must lose time as well.
    """
    hits = np.count_nonzero(late[stretch.unit, stretch.columns])
    num_any_late = np.count_nonzero(any_late[inside])
    return tail_bound(hits * search.weight, num_any_late * search.weight, 1 / len(late))
