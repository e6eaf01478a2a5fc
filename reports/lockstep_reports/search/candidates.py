"""Searches for late units in two evidence sources: the ranks' own work, and who waited for whom.

Own work shows lateness at once and names the phase; a rank is compared with the others and with
its own usual. It counts only where the others did wait for the rank. Waiting alone shows what own
work does not (a device that is slow without the host noticing), and never overrules own work
(decision 9).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Cells, Flags, Integers, Matrix, blocks_of_columns, negative
from lockstep_reports.chance import independence, tail_bound
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.late import (
    FALSE_ALARM_PROBABILITY,
    Search,
    Stretch,
    find_late,
    overlaps,
)
from lockstep_reports.search.score import (
    MIN_EFFECT_RATIO,
    MOST_SLOW,
    Margin,
    Scores,
    Units,
    beyond_others,
    beyond_usual,
    excess,
    gapped_sets,
    groups,
    margin_of,
    medians,
    single_ranks,
)

_QUICK_SHARE = 0.25  # all ranks count as slow when at least three in four are
# Shares of the false alarm probability: most of it goes to changes of the phases, which show a
# fault soonest. The sum is 1; the kinds of units and the two references (latest other rank,
# median of the others) share one budget undivided, so the true sum of bounds is several times it.
_SHARE_OF_WAITING, _SHARE_OF_ALWAYS, _SHARE_OF_PHASES = 0.1, 0.1, 0.8
# Share of the longer work that must show as waiting of the others (decision 9).
_WAITED_SHARE = 0.5
# A rank with three quarters of the others' speed, a third more work, is NVRx's straggler on any
# host; less than that leaves room for noise in what is left of its work.
_MAX_LEFT_RATIO = 1 / 4
# One steady rank or group is preferred to a set, or to what comes and goes, that explains as much.
_SET_DISCOUNT = 0.75
# Share of the costliest candidate's loss that another one must reach, to be one in its steps.
_MIN_SHARE_OF_COSTLIEST = 0.5
# Heights that are tried besides the threshold, as parts of the median of the late steps: noise
# passes the low ones, and a height among those of a fault would have a part of it only.
_PARTS = 0.0, 0.5, 0.8
# Each round sets the ends by the rates inside and outside those of the round before.
_ROUNDS = 3
# Steps beside an episode that are late so often, by so many more than that share, are of it.
_LATE_SHARE, _MIN_GROWTH = 0.75, 2.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A unit that was late in a stretch of steps.

    Attributes:
        values: in which it was found, more of them is later: seconds, [ranks, all steps].
        all_margin: by how much each unit came after all others: seconds, [units, all steps].
        all_lateness: what was held against the threshold, in the same way.
        by_work: seen in own work; else in waiting.
    """

    units: Units
    stretch: Stretch
    values: Cells
    all_margin: Margin
    all_lateness: Cells
    by_work: bool = True

    @cached_property
    def rows(self) -> list[int]:
        """Rows of its ranks."""
        return self.units.rows(self.stretch.unit)

    @cached_property
    def margin(self) -> Matrix:
        """By how much it came after all others: seconds, [steps of the stretch]; NaN if unknown."""
        return self.all_margin[self.stretch.unit, self.stretch.columns]

    @cached_property
    def late(self) -> Flags:
        """The late steps [steps of the stretch]."""
        lateness = self.all_lateness[self.stretch.unit, self.stretch.columns]
        late: Flags = lateness > self.stretch.threshold
        return late

    @cached_property
    def cost(self) -> Matrix:
        """What the job had gained if it came with the next one: seconds, [steps of the stretch]."""
        unit, columns = self.stretch.unit, self.stretch.columns
        own = nan_stats.highest(self.values[self.rows, columns], axis=0)
        beyond = np.nan_to_num(own - self.all_margin.others(unit, columns)).clip(min=0.0)
        # Where planned work explains the lateness, the margin is unknown.
        return np.where(np.isnan(self.margin), 0.0, beyond)

    @property
    def late_columns(self) -> Integers:
        """The late steps, as columns."""
        return self.stretch.first + np.flatnonzero(self.late)

    def shares_ranks(self, other: "Candidate") -> bool:
        """Whether another one has a rank of it."""
        return not {*self.rows}.isdisjoint(other.rows)


def place_ends(candidates: list[Candidate], num_steps: int) -> list[Candidate]:
    """The candidates from the step in which their lateness began to the one in which it ended."""
    placed: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: each.stretch.first):
        stretch, lateness = candidate.stretch, candidate.all_lateness
        before = [c.stretch.last for c in placed if candidate.shares_ranks(c)]
        others = [c.stretch.first for c in candidates if candidate.shares_ranks(c)]
        after = [first for first in others if first > stretch.last]
        bounds = max(before, default=-1) + 1, min(after, default=num_steps) - 1
        seen = np.array([lateness[stretch.unit, :], excess(candidate.values, candidate.rows)])
        first, last = find_ends(seen, stretch.threshold, (stretch.first, stretch.last), bounds)
        stretch = replace(stretch, first=first, last=last).counted(lateness)
        placed.append(replace(candidate, stretch=stretch) if stretch.num_late else candidate)
    return placed


def find_ends(
    lateness: Matrix, threshold: float, ends: tuple[int, int], bounds: tuple[int, int]
) -> tuple[int, int]:
    """First and last column of an episode, by those where it was found and those it may reach.

    Lateness is in seconds, [series, steps], several ways to see it; NaN where unknown. Over the
    threshold a step is late.
    """
    low, high = bounds
    within = lateness[:, low : high + 1]
    # The best of so many places gains as much by chance.
    found = [(math.log(high - low + 1), ends[0] - low, ends[1] - low)]
    for values in within:
        inside = values[ends[0] - low : ends[1] - low + 1]
        inside = inside[inside > threshold]
        for part in _PARTS if len(inside) else ():
            late = values[~np.isnan(values)] >= max(threshold, part * float(np.median(inside)))
            columns = np.flatnonzero(~np.isnan(values))
            first, last = np.searchsorted(columns, (ends[0] - low, ends[1] - low))
            gain, first, last = _likeliest(late, int(first), min(int(last), len(late) - 1))
            found.append((gain, int(columns[first]), int(columns[last])))
    _, first, last = max(found)
    late = within[0] > threshold
    before = _growth(late[:first][::-1], first + low - ends[0])
    return low + first - before, low + last + _growth(late[last + 1 :], ends[1] - last - low)


def _growth(late: Flags, num_found: int) -> int:
    """How many steps [steps], counted from the end of an episode, are nearly all late too.

    A fault that grows is small where it begins. Of the ``num_found`` in which it was found it does
    not take many.
    """
    gains = np.cumsum(late - _LATE_SHARE)
    if gains.max(initial=0.0) > _MIN_GROWTH:
        return int(np.argmax(gains)) + 1
    return num_found if num_found > 0 and gains[num_found - 1] > 0 else 0


def _likeliest(late: Flags, first: int, last: int) -> tuple[float, int, int]:
    """Gain in nats of two rates of late steps [steps] over one, and the likeliest ends."""
    count = len(late)
    for _ in range(_ROUNDS):
        hits, steps = np.count_nonzero(late[first : last + 1]), last + 1 - first
        # Half a step of each kind more: nothing seen does not mean that it never happens.
        rate = (hits + 0.5) / (steps + 1)
        others = (np.count_nonzero(late) - hits + 0.5) / (count - steps + 1)
        if rate <= others:
            break
        nats = np.where(late, math.log(rate / others), math.log((1 - rate) / (1 - others)))
        sums = np.concatenate([[0.0], np.cumsum(nats)])
        first = int(np.argmin(sums[: last + 1]))
        last = first + int(np.argmax(sums[first + 1 :]))
    parts = late[first : last + 1], np.delete(late, slice(first, last + 1))
    return sum(map(_nats, parts)) - _nats(late), first, last


def _nats(late: Flags) -> float:
    """Logarithm of the probability of so many late steps [steps], at their own rate."""
    hits = int(np.count_nonzero(late))
    counts = [number for number in (hits, len(late) - hits) if number]
    return sum(number * math.log(number / len(late)) for number in counts)


def _find_candidates(steps: Steps, scores: Scores, search: Search) -> list[Candidate]:
    """Who was late; of candidates with common ranks and steps, the one that explains most."""
    by_work = _drop_doubles(steps, scores, _search_work(steps, scores, search, None))
    if len({tuple(candidate.rows) for candidate in by_work}) > 1:
        # A rank whose slow steps count as usual makes the others look slow in its healthy ones.
        found = _search_work(steps, scores, search, _late_cells(steps, by_work))
        by_work = _drop_doubles(steps, scores, found)
    # Steps in which one's work explains the waiting say nothing of who else keeps others waiting.
    is_explained: Flags = np.asarray(_late_cells(steps, by_work).any(axis=0))
    by_waiting = _drop_doubles(steps, scores, _search_waiting(steps, scores, search, is_explained))
    return by_work + [
        candidate
        for candidate in by_waiting
        if not any(overlaps(candidate.stretch, other.stretch) for other in by_work)
    ]


def _late_cells(steps: Steps, candidates: list[Candidate]) -> Flags:
    """The stretches of candidates [ranks, steps]."""
    cells = np.zeros(steps.seconds.shape, dtype=bool)
    for candidate in candidates:
        cells[candidate.rows, candidate.stretch.columns] = True
    return cells


def _search_work(
    steps: Steps, scores: Scores, search: Search, slow: Flags | None
) -> Iterator[Candidate]:
    """By all own work together, and by each phase: noise in one must not hide another."""
    kinds, account = (single_ranks(steps), *groups(steps)), scores.account
    # Where waits hide who is slow, also as if each rank had had a core.
    works = [scores.own_work, *((account.own_work,) if scores.is_crowded else ())]
    share = search.false_alarm_probability * _SHARE_OF_PHASES / (len(works) + len(account.own))
    changed = replace(search, always=False, recurrent=True, false_alarm_probability=share)
    for values in account.own.values():
        yield from _candidates(kinds, beyond_usual(values, slow), changed)
    share = search.false_alarm_probability * _SHARE_OF_ALWAYS / len(works)
    always = replace(search, changed=False, false_alarm_probability=share)
    steady, threshold, block = replace(changed, recurrent=False), search.threshold, search.gap // 2
    for work in works:
        beyond = beyond_usual(work, slow)
        yield from _candidates((*kinds, *gapped_sets(steps, work, threshold, block)), work, always)
        yield from _candidates(kinds, beyond, changed)
        yield from _candidates(gapped_sets(steps, beyond, threshold, block), beyond, steady)


def _candidates(kinds: Iterable[Units], values: Cells, search: Search) -> Iterator[Candidate]:
    """Units that are late by their work: seconds, [ranks, steps]."""
    search = replace(search, weight=independence(values))
    for units in kinds:
        margin = units.margin(values)
        limits = replace(search, num_candidates=units.num_candidates)
        yield from _late(units, values, margin, margin, limits)
        if search.changed and units.kind == "rank":
            # In time a rank is compared with itself: the median of the others is enough.
            lateness = beyond_others(values)
            yield from _late(units, values, margin, lateness, replace(limits, recurrent=False))


def _late(
    units: Units, values: Cells, margin: Margin, lateness: Cells, search: Search
) -> Iterator[Candidate]:
    for stretch in find_late(lateness, search):
        yield Candidate(
            units=units, stretch=stretch, values=values, all_margin=margin, all_lateness=lateness
        )


def _search_waiting(
    steps: Steps, scores: Scores, search: Search, is_explained: Flags
) -> Iterator[Candidate]:
    """Ranks and nodes that kept the others waiting."""
    waits, share = scores.unheld_waits, search.false_alarm_probability * _SHARE_OF_WAITING
    kinds = [(single_ranks(steps), scores.rank_margin)]
    kinds += [(u, margin_of(u, waits, scores.planned)) for u in groups(steps) if u.kind == "node"]
    for units, all_margin in kinds:
        margin = all_margin.without(is_explained)
        limits = replace(search, false_alarm_probability=share, weight=independence(margin))
        for candidate in _late(units, negative(waits), margin, margin, limits):
            yield replace(candidate, by_work=False)


def _got_slower(scores: Scores, candidate: Candidate) -> bool:
    """Whether it worked longer than itself elsewhere, or steps were longer: else peers got faster.

    Whoever is late in nearly all steps has no elsewhere.
    """
    columns = candidate.late_columns
    elsewhere = np.ones(len(scores.step_seconds), bool)
    elsewhere[candidate.stretch.columns] = False
    if np.mean(elsewhere) < 1 - MOST_SLOW:
        return True
    rows = candidate.rows
    work = candidate.values[rows, :] if candidate.by_work else scores.account.busy(rows)
    own = nan_stats.mean(work, axis=0)
    longer = [
        float(nan_stats.median(values[columns]) - nan_stats.median(values[elsewhere]))
        for values in (own, scores.step_seconds)
    ]
    least = _WAITED_SHARE * float(nan_stats.median(candidate.margin[candidate.late]))
    return max(longer) >= least


def is_queued(steps: Steps, scores: Scores, candidate: Candidate) -> bool:
    """Whether waits for a core explain a lateness, and not the rank's own work.

    They do where they are half of it, or where the host is crowded and the rank did not sleep,
    unless what is left is a straggler's share more than the others' work: who takes cores takes
    caches too, and threads that nobody reads share them.
    """
    account, rows, columns = scores.account, candidate.rows, candidate.late_columns
    if account.queued is None:
        return False
    # Unknown waits make all of these NaN, and no comparison true.
    waits = account.queued[:, columns]
    work = np.where(np.isnan(waits), np.nan, scores.own_work[:, columns])
    longer = excess(work, rows) if candidate.by_work else candidate.margin[candidate.late]
    half = _WAITED_SHARE * float(nan_stats.mean(longer))
    is_explained = bool(nan_stats.mean(excess(waits, rows)) >= half)
    has_device = not candidate.by_work and any(member.gpu_uuid for member in steps.members)
    if scores.is_crowded and not has_device and account.slept is not None:
        is_explained |= bool(nan_stats.mean(excess(account.slept[:, columns], rows)) < half)
    if not is_explained:
        return False
    # What is left in all steps but the longest, which may be the first, with all that is done once.
    span = candidate.stretch.columns
    inside = scores.own_work[:, span] - account.queued[:, span]
    usual = float(np.nansum(medians(inside, rows)))
    beyond = excess(inside, rows)
    left = float(np.nansum(beyond) - nan_stats.highest(beyond, axis=0))
    return not left > _MAX_LEFT_RATIO * usual


_Seen = dict[tuple[object, ...], list[Matrix]]


def _is_waited_for(scores: Scores, candidate: Candidate, seen: _Seen) -> bool:
    """Whether the others waited longer than the candidate, in the late steps or the ones after.

    What is seen of ranks and steps is kept, for many candidates are of the same ones.
    """
    late, stretch = candidate.late, candidate.stretch
    least = _WAITED_SHARE * nan_stats.median(candidate.margin[late])
    ranks_and_steps = (*candidate.rows, stretch.first, stretch.last)
    if ranks_and_steps not in seen:
        seen[ranks_and_steps] = list(_measure_waits(scores, candidate))
    return any(nan_stats.median(each[: len(late)][late]) >= least for each in seen[ranks_and_steps])


def _measure_waits(scores: Scores, candidate: Candidate) -> Iterator[Matrix]:
    """How much longer the others waited, in each step or the one after: seconds, [steps + 1]."""
    rows, stretch = candidate.rows, candidate.stretch
    waits = [scores.unheld_waits[:, stretch.first : stretch.last + 2]]
    if scores.is_crowded:
        queued = scores.account.host["queued"][:, stretch.first : stretch.last + 2]
        waits.append(waits[0] + queued)
    for sync in waits:
        lateness = medians(sync, rows) - nan_stats.median(sync[rows], axis=0)
        # What a rank does after the step's last collective is waited for in the next step.
        yield np.fmax(lateness, np.append(lateness[1:], lateness[-1]))


def _drop_doubles(steps: Steps, scores: Scores, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those at fault that explain most, without others that share ranks and steps with them."""
    selected: list[Candidate] = []
    waits: _Seen = {}
    candidates = (c for c in candidates if not c.by_work or _is_waited_for(scores, c, waits))
    at_fault = (c for c in candidates if _got_slower(scores, c) and not is_queued(steps, scores, c))
    for candidate in sorted(at_fault, key=_explained_seconds, reverse=True):
        rivals = [other for other in selected if overlaps(candidate.stretch, other.stretch)]
        shares_ranks = any(candidate.shares_ranks(other) for other in rivals)
        is_dear = all(
            _explained_seconds(candidate) >= _MIN_SHARE_OF_COSTLIEST * _explained_seconds(other)
            for other in rivals
        )
        if not shares_ranks and is_dear:
            selected.append(candidate)
    return selected


def _explained_seconds(candidate: Candidate) -> float:
    """Seconds that a candidate lost the job, less what makes it a worse explanation."""
    lost, stretch = float(candidate.cost.sum()), candidate.stretch
    if candidate.units.kind == "ranks" or not stretch.is_steady:
        return lost * _SET_DISCOUNT
    # Of two stretches that lost the same, the one with fewer quick steps.
    return lost - stretch.threshold * (stretch.num_known - stretch.num_late)


Common = tuple[Stretch, Integers]
"""A stretch in which at least three ranks in four worked longer than usual in the same steps, and
these columns."""


def search(
    steps: Steps, scores: Scores, window_steps: int
) -> tuple[list[Candidate], Common | None]:
    """Who was late, in own work and in waiting, not too briefly and cheaply; where all were."""
    threshold = scores.threshold
    limits = Search(threshold=threshold, min_mean_loss=threshold / 2, gap=2 * window_steps)
    found = _find_candidates(steps, scores, limits)
    brief = _find_hiccups(steps, scores, found, window_steps)
    return [each for each in found if each not in brief], _find_common(scores, limits)


def _find_common(scores: Scores, search: Search) -> Common | None:
    """Where all ranks were slow at once, in most late steps.

    Null hypothesis: late steps lie anywhere with equal probability (Fisher's exact test).
    """
    beyond = beyond_usual(scores.account.own_work)
    share = int(_QUICK_SHARE * len(beyond)) / max(1, len(beyond) - 1)
    # What at least three ranks in four work more than usual.
    parts = (beyond[:, columns] for columns in blocks_of_columns(beyond))
    common = np.concatenate([nan_stats.quantile(part, share, axis=0) for part in parts])[None]
    weight = min(independence(beyond), independence(common))
    found = find_late(common, replace(search, weight=weight, always=False))
    # What most steps are is usual, however quick the others.
    if not found or np.count_nonzero(common > search.threshold) > common.size / 2:
        return None
    stretch = max(found, key=lambda stretch: stretch.num_late)
    return stretch, stretch.first + np.flatnonzero(common[0, stretch.columns] > stretch.threshold)


def _find_hiccups(
    steps: Steps, scores: Scores, candidates: list[Candidate], window_steps: int
) -> list[Candidate]:
    """The candidates that were brief and cheap, and hit one rank or another as chance does.

    Busy hosts pause for a few steps. From ``window_steps`` late steps on none is brief.
    """
    cheap_seconds = MIN_EFFECT_RATIO * float(np.nansum(scores.step_seconds))
    cheap = [each for each in candidates if float(each.cost.sum()) < cheap_seconds]
    brief = [each for each in cheap if np.count_nonzero(each.late) < window_steps]
    if len({tuple(each.rows) for each in brief}) > 1:
        # Where hiccups are usual, two may follow each other and look like one of twice the length.
        brief = [each for each in cheap if np.count_nonzero(each.late) < 2 * window_steps]
    # Null hypothesis: a hiccup hits any of the ranks with the same probability, independently of
    # the others. The correction counts every rank that could have been hit too often.
    num_ranks, counts = len(steps.members), Counter(tuple(each.rows) for each in brief)
    return [
        each
        for each in brief
        if tail_bound(counts[tuple(each.rows)], len(brief), 1 / num_ranks) * num_ranks
        > FALSE_ALARM_PROBABILITY
    ]
