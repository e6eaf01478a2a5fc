"""Finds the steps in which a unit was late, however few: at once, again and again, or to the end.

Late steps are collected into stretches. Each must be no chance by a test that assumes nothing of
how the noise is distributed, corrected for every unit and every stretch that was possible:

* always: the unit was late in more than half of the steps. Only one unit of a kind can be late in
  a step, so even odds are the worst that chance can do.
* changed: the unit's late steps lie inside the stretch and not elsewhere (Fisher's exact test).
* recurrent: of the steps in which any unit was late, it was this one too often.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lockstep_reports.arrays import Cells, Flags, Integers, Matrix, blocks_of_rows
from lockstep_reports.chance import Noise, fisher_tail, measure_noise, tail_bound

FALSE_ALARM_PROBABILITY = 1e-3
"""Upper bound for naming anybody in a whole healthy run."""
WINDOW_STEPS = 10
"""Steps of the window in most of which lateness must hold; a judge needs two windows."""

# A stretch goes on while its late steps, worth 1 each, outweigh all its steps at this price, over
# gaps so many times as long as usual: a steady one is late in half of its steps or more, recurrent
# ones in a tenth, one of 25 and one of 66. Fewer late steps are not worth a test: three of them
# have at best a probability of 30 * units / steps by Fisher's, too much up to 100,000 steps.
_STEADY_PRICE, _MIN_STEADY = 0.5, 4
_RECURRENT_PRICES, _MIN_RECURRENT = ((0.1, 1), (0.04, 3), (0.015, 8)), 6
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
        num_late: late steps among the ``num_known`` ones, whose margin is known.
        chance: upper bound of the probability of such a stretch anywhere in a healthy run.
        is_steady: late in most of the steps; else now and then.
    """

    unit: int
    first: int
    last: int
    threshold: float
    num_late: int = 0
    num_known: int = 0
    chance: float = 1.0
    is_steady: bool = True

    @property
    def columns(self) -> slice:
        """The steps as a slice."""
        return slice(self.first, self.last + 1)

    def counted(self, margin: Cells) -> "Stretch":
        """The stretch with its steps counted by a margin: seconds, [units, steps]."""
        values = margin[self.unit, self.columns]
        num_late = int(np.count_nonzero(values > self.threshold))
        return replace(self, num_late=num_late, num_known=int(np.count_nonzero(~np.isnan(values))))


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
        num_candidates: of ``Units``.
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


class _Seen(NamedTuple):
    """Margins of some units [some units, steps], their late steps likewise, and of all the number.

    The late steps of any unit are [steps].
    """

    margin: Matrix
    late: Flags
    any_late: Flags
    num_units: int


def find_late(margin: Cells, search: Search) -> list[Stretch]:
    """All stretches that pass a test, by unit and step.

    Margins are by how much each unit came after all others: seconds, [units, steps].
    """
    levels = [replace(search, threshold=search.threshold * level) for level in _LEVELS]
    units, remaining, num_late = _select_late(margin, levels)
    stretches: list[Stretch] = []
    while len(units):
        found: list[Stretch] = []
        for at_level, counts in zip(levels, num_late, strict=True):
            late = remaining > at_level.threshold
            seen = _Seen(remaining, late, counts > 0, len(margin))
            # Of two ways in which the same steps come and go, that which chance explains least.
            for stretch in sorted(_find_at(seen, at_level), key=_chance_if_recurrent):
                if not is_among(found, stretch):
                    found.append(stretch)
        stretches += [replace(each, unit=int(units[each.unit])) for each in found]
        # A fault that was found is not usual for the unit: the rest is tested without it.
        for stretch in found:
            part = remaining[stretch.unit, stretch.columns]
            for at_level, counts in zip(levels, num_late, strict=True):
                counts[stretch.columns] -= part > at_level.threshold
            part[:] = np.nan
        rows = sorted({stretch.unit for stretch in found})
        units, remaining = units[rows], remaining[rows]
    return sorted(stretches, key=lambda stretch: (stretch.unit, stretch.first))


def _select_late(margin: Cells, levels: Sequence[Search]) -> tuple[Integers, Matrix, Integers]:
    """The units that are late in enough steps, their margins, and the late units by level and step.

    Margins are [units, steps], of which a few units are looked at together.
    """
    num_late = np.zeros((len(levels), margin.shape[1]), dtype=np.int64)
    units, selected = [np.empty(0, dtype=np.int64)], [np.asarray(margin[:0, :])]
    for rows in blocks_of_rows(margin):
        block = np.asarray(margin[rows, :])
        late = block > levels[0].threshold
        counts = np.count_nonzero(late, axis=1)
        any_late, often = counts > 0, counts >= _MIN_STEADY
        for index, level in enumerate(levels):
            num_late[index] += (block[any_late] > level.threshold).sum(axis=0)
        units.append(rows.start + np.flatnonzero(often))
        selected.append(block[often])
    return np.concatenate(units), np.concatenate(selected), num_late


def _chance_if_recurrent(stretch: Stretch) -> float:
    return stretch.chance * (not stretch.is_steady)


def is_among(stretches: Iterable[Stretch], stretch: Stretch) -> bool:
    """Whether a stretch shares a step with another one of its unit."""
    return any(stretch.unit == other.unit and overlaps(stretch, other) for other in stretches)


def overlaps(stretch: Stretch, other: Stretch) -> bool:
    """Whether two stretches share a step."""
    return stretch.first <= other.last and other.first <= stretch.last


def _find_at(seen: _Seen, search: Search) -> Iterator[Stretch]:
    """Stretches over one threshold whose chance, corrected for all levels, is small enough."""
    margin, late = seen.margin, seen.late
    kinds = [(True, _STEADY_PRICE, _MIN_STEADY, search.gap)]
    for price, gaps in _RECURRENT_PRICES if search.recurrent else ():
        kinds.append((False, price, _MIN_RECURRENT, gaps * search.gap))
    for unit in np.flatnonzero(late.sum(axis=1) >= _MIN_STEADY).tolist():
        for is_steady, price, min_count, gap in kinds:
            for first, last, count in collect_late(np.flatnonzero(late[unit]), price, gap):
                if count < min_count:
                    continue
                stretch = Stretch(
                    unit=unit, first=first, last=last, threshold=search.threshold,
                    is_steady=is_steady,
                ).counted(margin)  # fmt: skip
                chance = len(_LEVELS) * _chance(stretch, seen, search)
                if chance <= search.false_alarm_probability:
                    yield replace(stretch, chance=chance)


def collect_late(late_columns: Integers, price: float, gap: int) -> Iterator[tuple[int, int, int]]:
    """First and last late step of each stretch of ascending ones, and its number of late steps.

    Every step has a ``price``, for which a late one gives 1; a ``gap`` without any ends a stretch.
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


def _chance(stretch: Stretch, seen: _Seen, search: Search) -> float:
    """The smallest probability of the tests that apply, each corrected for all it could pass on."""
    num_units, num_steps = seen.num_units, seen.margin.shape[1]
    num_candidates, weight = max(1.0, search.num_candidates), search.weight
    chances = [1.0]
    if stretch.is_steady and search.always:
        # Null hypothesis: late in a step with a probability of at most one half, the most that two
        # units which are always last can share. So 2 units times all first steps could pass.
        hits = stretch.num_late - bool(search.num_candidates)
        chance = tail_bound(hits * weight, stretch.num_known * weight, 0.5)
        chances.append(chance * 2 * num_steps * num_candidates)
    if stretch.is_steady and not search.changed:
        return min(chances)
    # A recurrent stretch must lose enough per step, spread over all its steps.
    values = seen.margin[stretch.unit, stretch.columns]
    lost = float(values[values > search.threshold].sum())
    if not stretch.is_steady and lost < search.min_mean_loss * stretch.num_known:
        return 1.0
    # A stretch is any pair of steps, or any first step if it lasts to the end; each kind gets its
    # share of the false alarm probability.
    share_of_all = 0.0 if stretch.is_steady else _SHARE_OF_ALL
    num_anywhere = num_steps * num_steps / 2 / (1 - _SHARE_TO_THE_END - share_of_all)
    places = [
        (slice(stretch.first, stretch.last + 1), num_anywhere),
        (slice(stretch.first, num_steps), num_steps / _SHARE_TO_THE_END),
    ]
    if not stretch.is_steady:
        # The same for the hits of a stretch among those of all steps: a part of them proves less.
        places.append((slice(0, num_steps), 1 / _SHARE_OF_ALL))
    test = _chance_of_change if stretch.is_steady else _chance_of_recurrence
    for inside, num_places in places:
        chance = test(stretch, inside, seen, search)
        chances.append(chance * num_places * num_units * num_candidates)
    return min(chances)


def _chance_of_change(stretch: Stretch, inside: slice, seen: _Seen, search: Search) -> float:
    """Fisher's exact test: does the unit's lateness concentrate inside the stretch?

    Hits are those of the stretch: one that is tested to the end of the run must reach it by itself,
    and not by a later fault of the same unit.

    Null hypothesis: the unit's late steps lie anywhere with equal probability. Assumed:
    a step is worth ``weight`` independent ones, and nothing else of the noise. Counts are scaled
    by the weight and rounded so that the probability becomes larger, never smaller.
    """
    unit, weight = stretch.unit, search.weight
    is_known = ~np.isnan(seen.margin[unit])
    num_inside, num_known = np.count_nonzero(is_known[inside]), np.count_nonzero(is_known)
    hits = stretch.num_late
    hits_outside = int(np.count_nonzero(seen.late[unit]) - hits)
    hits -= bool(search.num_candidates)  # the step that chose the unit proves nothing
    steps_inside, steps_outside = (
        int(count * weight) for count in (num_inside, num_known - num_inside)
    )
    scaled_hits = min(steps_inside, int(hits * weight))
    all_hits = scaled_hits + min(steps_outside, -int(-hits_outside * weight // 1))
    return fisher_tail(scaled_hits, steps_inside, all_hits, steps_inside + steps_outside)


def _chance_of_recurrence(stretch: Stretch, inside: slice, seen: _Seen, search: Search) -> float:
    """Whether of the steps in which any unit was late, it was this one too often.

    Null hypothesis: whichever unit is late in a step, each is it with the same probability 1 / n.
    Assumed: the units' noise is exchangeable. It is not where hosts differ, so a recurrent stretch
    must lose time as well.
    """
    trials = np.count_nonzero(seen.any_late[inside]) * search.weight
    return tail_bound(stretch.num_late * search.weight, trials, 1 / seen.num_units)


# Shorter stretches are hiccups of busy hosts, which last up to eight steps.
_MIN_LATE = 10
# Share of a stretch's steps that must be late, as the price of a step (see ``collect_late``), and
# the longest gap: a pause of a few steps ends no stretch, but two hiccups are not one either.
_HIGH_PRICE, _HIGH_GAP = 0.7, 4
_HEIGHT_RATIO = 1.4
_MAX_HEIGHTS = 40
# A stretch must be so many times as long as the longest run elsewhere: of about its own height,
# because two hiccups may follow each other, and of late steps of any height.
_RUNS_AS_HIGH, _RUNS_OF_ANY = 2.0, 1.5


def find_high(excess: Matrix, threshold: float, probability: float) -> list[Stretch]:
    """The stretches too high and too long for chance, by unit and step: short ones too.

    Each, at each of several heights, is held against three ways in which a healthy run could make
    it: steps reach that height as often elsewhere, in runs as long; a rare shock fades slowly;
    noise drags on. The constants come from null runs (``bench/reports/verdict_tables.py``).

    ``excess`` is beyond the usual, as a logarithm or in seconds, [units, steps]; NaN where unknown.
    From ``threshold`` on it counts. ``probability`` bounds one anywhere in a healthy run.
    """
    top = float(np.nan_to_num(excess, nan=-np.inf).max(initial=-np.inf))
    heights = threshold * _HEIGHT_RATIO ** np.arange(_MAX_HEIGHTS)
    heights = heights[heights < top]
    candidates = [each for height in heights.tolist() for each in _high_stretches(excess, height)]
    elsewhere = excess.copy()
    for candidate in candidates:
        elsewhere[candidate.unit, candidate.columns] = np.nan
    if not candidates or (noise := measure_noise(elsewhere)) is None:
        return []
    stretches: list[Stretch] = []
    # The highest first: its ends are those of the fault, not of the noise around it.
    for candidate in reversed(candidates):
        chance = _chance_of_height(candidate, elsewhere, noise, threshold)
        chance *= excess.size * len(heights)
        if chance <= probability and not is_among(stretches, candidate):
            stretches.append(replace(candidate, chance=chance))
    return sorted(stretches, key=lambda stretch: (stretch.unit, stretch.first))


def _high_stretches(excess: Matrix, height: float) -> Iterator[Stretch]:
    late = excess > height
    for unit in np.flatnonzero(late.sum(axis=1) >= _MIN_LATE).tolist():
        for first, last, count in collect_late(np.flatnonzero(late[unit]), _HIGH_PRICE, _HIGH_GAP):
            if count >= _MIN_LATE:
                stretch = Stretch(unit=unit, first=first, last=last, threshold=height)
                yield stretch.counted(excess)


def _chance_of_height(
    candidate: Stretch, elsewhere: Matrix, noise: Noise, threshold: float
) -> float:
    """Largest probability of the three ways at one given place; 1 where runs are as long elsewhere.

    ``elsewhere`` is the recording without any candidate [units, steps], ``noise`` that of it.
    """
    height, num_late = candidate.threshold, candidate.num_late
    least = threshold, height / _HEIGHT_RATIO
    of_any, as_high = (_run_lengths(elsewhere > each).max(initial=0) for each in least)
    if num_late < max(_RUNS_AS_HIGH * as_high, _RUNS_OF_ANY * of_any):
        return 1.0
    late, is_known = elsewhere > height, ~np.isnan(elsewhere)
    # Late steps come in runs, so each is worth one run's share of an independent step.
    weight = len(_run_lengths(late)) / max(1, late.sum()) or 1.0
    # One more than was seen: nothing seen does not mean that it never happens.
    own, of_all = (
        (late[rows].sum() + 1) / (is_known[rows].sum() + 1) for rows in (candidate.unit, ...)
    )
    num_steps = candidate.last - candidate.first + 1
    return max(
        tail_bound(num_late * weight, num_steps * weight, float(max(own, of_all))),
        noise.chance_of_shock(height, num_late),
        noise.chance_of_mean(height, num_late),
    )


def _run_lengths(flags: Flags) -> Integers:
    """Steps of each run of true flags [units, steps]."""
    edges = np.diff(np.pad(flags.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    return np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]
