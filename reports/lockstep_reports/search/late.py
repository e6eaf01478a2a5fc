"""Finds the steps in which a unit was late, however few: at once, again and again, or to the end.

Late steps are gathered into stretches. Each must be no chance by a test that asks nothing of how
the noise is distributed, paid for every unit and every stretch that there could have been:

* always: the unit was late in more than half of the steps. Only one unit of a kind can be late in
  a step, so even odds are the worst that chance can do.
* changed: the unit's late steps lie inside the stretch and not elsewhere (Fisher's exact test).
* recurrent: of the steps in which any unit was late, it was this one too often.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.search.chance import gathered, tail_bound
from lockstep_reports.search.episodes import Stretch

# A late step counts one, any step between costs this much: late in at least that share of them.
_STEADY, _RECURRENT = 0.5, 0.1
_LEAST_STEADY, _LEAST_RECURRENT = 4, 6
# A big fault is looked for above the noise that hides it: so many times the threshold.
_LEVELS = (1.0, 1.4, 2.0, 4.0, 8.0)
# Of the chance of a false alarm, what goes to stretches that last to the end: they are few.
_TO_THE_END = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What counts as late, and which tests may be passed.

    Attributes:
        threshold: margin in seconds over which a step is late.
        mean: seconds that a recurrent stretch must lose a step on the mean.
        gap: steps without a late one that end a stretch.
        weight: independent steps that a step is worth.
        chance: of a stretch anywhere in a healthy run, at most.
        always: whether being late from the beginning may count.
        recurrent: whether being late now and then may count.
        chosen: among so many units the recording chose them; 0 when it did not.
    """

    threshold: float
    mean: float
    gap: int
    weight: float
    chance: float
    always: bool = True
    changed: bool = True
    recurrent: bool = False
    chosen: float = 0.0


def find_late(margin: Matrix, search: Search) -> list[Stretch]:
    """All stretches that pass a test, by unit and step.

    Args:
        margin: by how much each unit came after all others [units x steps], NaN where unknown.
        search: what to look for.
    """
    found: list[Stretch] = []
    for level in _LEVELS:
        at_level = replace(search, threshold=search.threshold * level)
        for stretch in _find_at(margin, at_level):
            if not any(stretch.unit == s.unit and _overlap(stretch, s) for s in found):
                found.append(stretch)
    return sorted(found, key=lambda stretch: (stretch.unit, stretch.first))


def _find_at(margin: Matrix, search: Search) -> Iterator[Stretch]:
    late = margin > search.threshold
    anybody: Flags = np.asarray(late.any(axis=0))
    kinds = [(True, _STEADY, _LEAST_STEADY)]
    kinds += [(False, _RECURRENT, _LEAST_RECURRENT)] * search.recurrent
    for unit in np.flatnonzero(late.sum(axis=1) >= _LEAST_STEADY).tolist():
        at = np.flatnonzero(late[unit])
        for steady, price, least in kinds:
            for first, last, count in gathered_late(at, price, search.gap):
                if count < least:
                    continue
                ends = _refined(margin[unit], first, last, search) if steady else (first, last)
                stretch = Stretch.over(unit, ends, margin, search.threshold, steady=steady)
                chance = len(_LEVELS) * _chance(stretch, late, anybody, margin, search)
                if chance <= search.chance:
                    yield replace(stretch, chance=chance)


def _overlap(one: Stretch, other: Stretch) -> bool:
    return one.first <= other.last and other.first <= one.last


def gathered_late(at: NDArray[np.int64], price: float, gap: int) -> Iterator[tuple[int, int, int]]:
    """First and last late step of each stretch whose late steps outweigh the price of all.

    The third number is how many late steps it has.
    """
    begin = last = -1
    score, count = 0.0, 0
    for place in at.tolist():
        paid = score - price * (place - last - 1)
        if begin < 0 or place - last > gap or paid <= 0:
            if begin >= 0:
                yield begin, last, count
            begin, paid, count = place, 0.0, 0
        score, last, count = paid + 1 - price, place, count + 1
    if begin >= 0:
        yield begin, last, count


def _refined(margin: Matrix, first: int, last: int, search: Search) -> tuple[int, int]:
    """The part of a stretch with the steps that come near its level; noise around it is cut off."""
    inside = margin[first : last + 1]
    level = float(np.median(inside[inside > search.threshold])) / 2
    at = np.flatnonzero(inside > max(level, search.threshold))
    parts = gathered_late(at, _STEADY, search.gap)
    begin, end, _ = max(parts, key=lambda part: part[2])
    return first + begin, first + end


def _chance(stretch: Stretch, late: Flags, anybody: Flags, margin: Matrix, search: Search) -> float:
    """The smallest chance of the tests that apply, each paid for all that could pass it."""
    units, steps = margin.shape
    chosen = max(1.0, search.chosen)
    found = [1.0]
    if stretch.steady and search.always:
        hits = stretch.late - bool(search.chosen)
        odds = tail_bound(hits * search.weight, stretch.told * search.weight, 0.5)
        found.append(odds * 2 * steps * chosen)
    if stretch.steady and not search.changed:
        return min(found)
    if not stretch.steady and not _dear(stretch, margin, search):
        return 1.0
    anywhere = steps * steps / 2 / (1 - _TO_THE_END)
    for last, places in ((stretch.last, anywhere), (steps - 1, steps / _TO_THE_END)):
        inside = slice(stretch.first, last + 1)
        test = _changed if stretch.steady else _shared
        chance = test(stretch.unit, inside, late=late, margin=margin, anybody=anybody, of=search)
        found.append(chance * places * units * chosen)
    return min(found)


def _changed(
    unit: int, inside: slice, *, late: Flags, margin: Matrix, anybody: Flags, of: Search
) -> float:
    """Fisher's exact test, on as many steps as they are worth."""
    del anybody
    known_steps = ~np.isnan(margin[unit])
    told, everywhere = np.count_nonzero(known_steps[inside]), np.count_nonzero(known_steps)
    hits, all_hits = np.count_nonzero(late[unit, inside]), np.count_nonzero(late[unit])
    elsewhere = int(all_hits - hits)
    hits -= bool(of.chosen)  # the step that chose the unit proves nothing
    here, there = int(told * of.weight), int((everywhere - told) * of.weight)
    few = min(here, int(hits * of.weight))
    others = min(there, -int(-elsewhere * of.weight // 1))
    return gathered(few, here, few + others, here + there)


def _shared(
    unit: int, inside: slice, *, late: Flags, margin: Matrix, anybody: Flags, of: Search
) -> float:
    """Whether of the steps in which any unit was late, it was this one too often."""
    hits = np.count_nonzero(late[unit, inside])
    shared = np.count_nonzero(anybody[inside])
    return tail_bound(hits * of.weight, shared * of.weight, 1 / len(margin))


def _dear(stretch: Stretch, margin: Matrix, search: Search) -> bool:
    seen = margin[stretch.unit, stretch.places]
    lost = float(seen[seen > search.threshold].sum())
    return lost >= search.mean * stretch.told
