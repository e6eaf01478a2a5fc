"""Searches for late units in two evidence sources: the ranks' own work, and who waited for whom.

Own work shows lateness at once and names the phase; a rank is compared with the others and with
its own usual. It counts only where the others did wait for the rank. Waiting alone shows what own
work does not (a device that is slow without the host noticing), and never overrules own work
(decision 9).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.chance import independence, tail_bound
from lockstep_reports.search.ends import find_ends
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
    Scores,
    beyond_usual,
    excess,
    sample_rows,
)
from lockstep_reports.search.units import Units, beyond_others, gapped_sets, groups, single_ranks

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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Candidate:
    """A unit that was late in a stretch of steps.

    Attributes:
        rows: rows of its ranks.
        late: the late steps [steps of the stretch].
        margin: by how much it came after all others: seconds, [steps of the stretch]; NaN where
            unknown.
        cost: what the job would have gained had it come with the next one: seconds,
            [steps of the stretch].
        by_work: seen in own work; else in waiting.
        evidence: what it was found in, in all steps.
    """

    units: Units
    stretch: Stretch
    rows: tuple[int, ...]
    late: Flags
    margin: Matrix
    cost: Matrix
    by_work: bool
    evidence: "_Evidence"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Evidence:
    """What one search looks at.

    Attributes:
        values: more of them is later: seconds, [ranks, steps]; NaN where unknown.
        margin: by how much each unit came after all others: seconds, [units, steps].
        lateness: what is held against the threshold, in the same way.
        is_unqueued: whether it is work as if each rank had had a core whenever it was ready to run.
    """

    units: Units
    values: Matrix
    margin: Matrix
    lateness: Matrix
    by_work: bool
    is_unqueued: bool = False

    def candidate(self, stretch: Stretch) -> Candidate:
        """The unit of a stretch, with what it did there."""
        columns, unit = stretch.columns, stretch.unit
        margin = self.margin[unit, columns]
        cost = self.units.cost(self.values[:, columns], unit)
        return Candidate(
            units=self.units,
            stretch=replace(stretch, num_last=int(np.count_nonzero(margin > 0))),
            rows=self.units.rows(unit),
            late=self.lateness[unit, columns] > stretch.threshold,
            margin=margin,
            # Where planned work explains the lateness, the margin is unknown.
            cost=np.where(np.isnan(margin), 0.0, cost),
            by_work=self.by_work,
            evidence=self,
        )


def place_ends(candidates: list[Candidate], num_steps: int) -> list[Candidate]:
    """The candidates from the step in which their lateness began to the one in which it ended."""
    placed: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: each.stretch.first):
        others = [s for s in candidates if s is not candidate and {*s.rows} & {*candidate.rows}]
        before = [s.stretch.last for s in placed if {*s.rows} & {*candidate.rows}]
        after = [s.stretch.first for s in others if s.stretch.first > candidate.stretch.last]
        bounds = max(before, default=-1) + 1, min(after, default=num_steps) - 1
        placed.append(_with_ends(candidate, bounds))
    return placed


def _with_ends(candidate: Candidate, bounds: tuple[int, int]) -> Candidate:
    evidence, stretch, unit = candidate.evidence, candidate.stretch, candidate.stretch.unit
    seen = np.array([evidence.lateness[unit], excess(evidence.values, list(candidate.rows))])
    ends = find_ends(seen, stretch.threshold, (stretch.first, stretch.last), bounds)
    return _between(candidate, ends)


def _between(candidate: Candidate, ends: tuple[int, int]) -> Candidate:
    """The candidate with other ends, where it was late between them."""
    evidence, stretch = candidate.evidence, candidate.stretch
    lateness = evidence.lateness[stretch.unit, ends[0] : ends[1] + 1]
    late = lateness > stretch.threshold
    if not late.any():
        return candidate
    num_known = int(np.count_nonzero(~np.isnan(lateness)))
    moved = replace(
        stretch, first=ends[0], last=ends[1], num_late=int(late.sum()), num_known=num_known
    )
    return evidence.candidate(moved)


def find_candidates(steps: Steps, scores: Scores, window_steps: int) -> list[Candidate]:
    """Who was late; of candidates with common ranks and steps, the one that explains most."""
    threshold = scores.threshold
    search = Search(threshold=threshold, min_mean_loss=threshold / 2, gap=2 * window_steps)
    by_work = _find_by_work(steps, scores, search)
    if len({candidate.rows for candidate in by_work}) > 1:
        # A rank whose slow steps count as usual makes the others look slow in its healthy ones.
        by_work = _find_by_work(steps, scores, search, _late_cells(steps, by_work))
    # Steps in which one's work explains the waiting say nothing of who else keeps others waiting.
    is_explained: Flags = np.asarray(_late_cells(steps, by_work).any(axis=0))
    waiting = _search_waiting(steps, scores, search, is_explained)
    slower = (each for each in waiting if _got_slower(scores, each))
    by_waiting = _drop_doubles(each for each in slower if _is_at_fault(steps, scores, each))
    return by_work + [
        candidate
        for candidate in by_waiting
        if not any(overlaps(candidate.stretch, other.stretch) for other in by_work)
    ]


def _late_cells(steps: Steps, candidates: list[Candidate]) -> Flags:
    """The stretches of candidates [ranks, steps]."""
    cells = np.zeros(steps.seconds.shape, dtype=bool)
    for candidate in candidates:
        cells[list(candidate.rows), candidate.stretch.columns] = True
    return cells


def _find_by_work(
    steps: Steps, scores: Scores, search: Search, slow: Flags | None = None
) -> list[Candidate]:
    found = _search_work(steps, scores, search, slow)
    waited = (candidate for candidate in found if _is_waited_for(scores, candidate))
    slower = (each for each in waited if _got_slower(scores, each))
    return _drop_doubles(each for each in slower if _is_at_fault(steps, scores, each))


def _search_work(
    steps: Steps, scores: Scores, search: Search, slow: Flags | None
) -> Iterator[Candidate]:
    """By all own work together, and by each phase: noise in one must not hide another."""
    kinds, phases = (single_ranks(steps), *groups(steps)), scores.account.own.values()
    works = [scores.own_work]
    if scores.is_crowded:
        # Where waits hide who is slow: as if each rank had had a core.
        works.append(scores.account.own_work)
    for number, work in enumerate(works):
        always = replace(
            search,
            changed=False,
            weight=independence(sample_rows(work)),
            false_alarm_probability=search.false_alarm_probability * _SHARE_OF_ALWAYS / len(works),
        )
        for units in (*kinds, *gapped_sets(steps, work, search.threshold, search.gap // 2)):
            chosen = replace(always, num_candidates=units.num_candidates)
            yield from _candidates(units, work, chosen, is_unqueued=number > 0)
    probability = search.false_alarm_probability * _SHARE_OF_PHASES / (len(works) + len(phases))
    for number, values in enumerate([*works, *phases]):
        beyond, is_work = beyond_usual(values, slow), number < len(works)
        is_unqueued = is_work and number > 0
        changed = replace(
            search,
            always=False,
            recurrent=True,
            weight=independence(sample_rows(beyond)),
            false_alarm_probability=probability,
        )
        for units in kinds:
            yield from _candidates(units, beyond, changed, is_unqueued=is_unqueued)
        for units in (
            gapped_sets(steps, beyond, search.threshold, search.gap // 2) if is_work else ()
        ):
            chosen = replace(changed, num_candidates=units.num_candidates, recurrent=False)
            yield from _candidates(units, beyond, chosen, is_unqueued=is_unqueued)


def _candidates(
    units: Units, values: Matrix, search: Search, *, is_unqueued: bool
) -> Iterator[Candidate]:
    """Units that are late by their work: seconds, [ranks, steps]."""
    margin = units.margin(values)
    by_margin = _Evidence(
        units=units,
        values=values,
        margin=margin,
        lateness=margin,
        by_work=True,
        is_unqueued=is_unqueued,
    )
    yield from map(by_margin.candidate, find_late(margin, search))
    if search.changed and units.kind == "rank":
        # In time a rank is compared with itself, so that the median of the others is enough.
        by_deviation = replace(by_margin, lateness=beyond_others(values))
        steady = find_late(by_deviation.lateness, replace(search, recurrent=False))
        yield from map(by_deviation.candidate, steady)


def _search_waiting(
    steps: Steps, scores: Scores, search: Search, is_explained: Flags
) -> Iterator[Candidate]:
    """Ranks and nodes that kept the others waiting."""
    kinds = [(single_ranks(steps), scores.rank_margin)]
    if scores.node_margin is not None:
        kinds += [(units, scores.node_margin) for units in groups(steps) if units.kind == "node"]
    probability = search.false_alarm_probability * _SHARE_OF_WAITING
    for units, all_margin in kinds:
        margin = np.where(is_explained, np.nan, all_margin)
        weight = independence(sample_rows(margin))
        search = replace(search, false_alarm_probability=probability, weight=weight)
        evidence = _Evidence(
            units=units,
            values=-scores.unheld_waits,
            margin=margin,
            lateness=margin,
            by_work=False,
        )
        yield from map(evidence.candidate, find_late(margin, search))


def _got_slower(scores: Scores, candidate: Candidate) -> bool:
    """Whether it worked longer than itself elsewhere, or steps were longer: else peers got faster.

    Whoever is late in nearly all steps has no elsewhere.
    """
    columns = candidate.stretch.first + np.flatnonzero(candidate.late)
    elsewhere = np.ones(len(scores.step_seconds), bool)
    elsewhere[candidate.stretch.columns] = False
    if np.mean(elsewhere) < 1 - MOST_SLOW:
        return True
    work = candidate.evidence.values if candidate.by_work else scores.account.busy
    own = nan_stats.mean(work[list(candidate.rows)], axis=0)
    longer = [
        float(nan_stats.median(values[columns]) - nan_stats.median(values[elsewhere]))
        for values in (own, scores.step_seconds)
    ]
    least = _WAITED_SHARE * float(nan_stats.median(candidate.margin[candidate.late]))
    return max(longer) >= least


def _is_at_fault(steps: Steps, scores: Scores, candidate: Candidate) -> bool:
    """Whether its own work makes it late, and not that other processes had its cores."""
    if not candidate.evidence.is_unqueued:
        return not _is_queued(steps, scores, candidate)
    least = scores.threshold * len(candidate.cost) / 2
    return _is_longer(scores.account.own_work, candidate) and float(candidate.cost.sum()) > least


def _is_queued(steps: Steps, scores: Scores, candidate: Candidate) -> bool:
    """Whether waits for a core explain a lateness, and not the rank's own work.

    They do where they are half of it, or where the host is crowded and the rank did not sleep,
    unless what is left is a straggler's share more than the others' work: who takes cores takes
    caches too, and threads that nobody reads share them.
    """
    account, rows = scores.account, list(candidate.rows)
    if account.queued is None:
        return False
    columns = candidate.stretch.first + np.flatnonzero(candidate.late)
    waits = account.queued[:, columns]
    queued = float(nan_stats.mean(excess(waits, rows)))
    # Unknown waits make all of these NaN, and no comparison true.
    if candidate.by_work:
        work = np.where(np.isnan(waits), np.nan, scores.own_work[:, columns])
        longer = float(nan_stats.mean(excess(work, rows)))
    else:
        longer = float(nan_stats.mean(candidate.margin[candidate.late]))
    is_explained = queued >= _WAITED_SHARE * longer
    if is_explained and not candidate.by_work:
        return True
    has_device = not candidate.by_work and any(member.gpu_uuid for member in steps.members)
    if scores.is_crowded and not has_device:
        slept = account.slept
        is_explained |= slept is not None and bool(
            nan_stats.mean(excess(slept[:, columns], rows)) < _WAITED_SHARE * longer
        )
    return is_explained and not _is_longer(scores.own_work - account.queued, candidate)


def _is_longer(work: Matrix, candidate: Candidate) -> bool:
    """Whether work [ranks, steps] is longer by a straggler's share in a stretch."""
    inside, rows = work[:, candidate.stretch.columns], list(candidate.rows)
    usual = float(np.nansum(nan_stats.median(np.delete(inside, rows, axis=0), axis=0)))
    longer = excess(inside, rows)
    # Without the longest, which may be the first of the run, with all that is done once.
    return float(np.nansum(longer) - nan_stats.highest(longer, axis=0)) > _MAX_LEFT_RATIO * usual


def _is_waited_for(scores: Scores, candidate: Candidate) -> bool:
    """Whether the others waited longer than the candidate, in the late steps or the ones after."""
    waits = scores.unheld_waits
    if candidate.evidence.is_unqueued:
        waits = waits + scores.account.host["queued"]
    first, last = candidate.stretch.first, min(candidate.stretch.last + 1, waits.shape[1] - 1)
    sync = waits[:, first : last + 1]
    rows = list(candidate.rows)
    lateness = nan_stats.median(np.delete(sync, rows, axis=0), axis=0) - nan_stats.median(
        sync[rows], axis=0
    )
    # What a rank does after the step's last collective is waited for in the next step.
    next_lateness = np.append(lateness[1:], lateness[-1])
    waited = np.fmax(lateness, next_lateness)[: len(candidate.late)][candidate.late]
    longer_work = candidate.margin[candidate.late]
    return bool(nan_stats.median(waited) >= _WAITED_SHARE * nan_stats.median(longer_work))


def _drop_doubles(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that explain most, without others that share ranks and steps with them."""
    selected: list[Candidate] = []
    for candidate in sorted(candidates, key=_explained_seconds, reverse=True):
        rivals = [other for other in selected if overlaps(candidate.stretch, other.stretch)]
        shares_ranks = any({*candidate.rows} & {*other.rows} for other in rivals)
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


class Found(NamedTuple):
    """What one search found.

    Attributes:
        candidates: units that were late, without those that were brief and cheap.
        brief: these.
        common: stretches in which at least three ranks in four worked longer than usual.
    """

    candidates: list[Candidate]
    brief: list[Candidate]
    common: list[Stretch]


def search(steps: Steps, scores: Scores, window_steps: int) -> Found:
    """Who was late, in own work and in waiting, and where all were."""
    found = find_candidates(steps, scores, window_steps)
    candidates = _drop_hiccups(steps, scores, found, window_steps)
    brief = [each for each in found if not any(each is other for other in candidates)]
    return Found(candidates, brief, _find_common(scores, window_steps))


def common_work(beyond: Matrix) -> Matrix:
    """What at least three ranks in four work more than usual: [1, steps], from [ranks, steps]."""
    num_ranks = len(beyond)
    share = int(_QUICK_SHARE * num_ranks) / max(1, num_ranks - 1)
    return nan_stats.quantile(beyond, share, axis=0)[None]


def _find_common(scores: Scores, window_steps: int) -> list[Stretch]:
    """Stretches in which all ranks were slow at once; those with most late steps first.

    Null hypothesis: late steps lie anywhere with equal probability (Fisher's exact test).
    """
    beyond, threshold = beyond_usual(scores.own_work), scores.threshold
    common = common_work(beyond)
    found = find_late(
        common,
        Search(
            threshold=threshold,
            min_mean_loss=threshold / 2,
            gap=2 * window_steps,
            weight=min(independence(sample_rows(beyond)), independence(common)),
            always=False,
        ),
    )
    # What most steps are is usual, however quick the others.
    if np.count_nonzero(common > threshold) > common.size / 2:
        return []
    return sorted(found, key=lambda stretch: -stretch.num_late)


def _drop_hiccups(
    steps: Steps, scores: Scores, candidates: list[Candidate], window_steps: int
) -> list[Candidate]:
    """The candidates without those that were brief and cheap, on one rank or another.

    Busy hosts pause for a few steps now and then. Such hiccups count when they cost the run as
    much as a step must lose to be late, or hit the same ranks more often than chance would. From
    ``window_steps`` late steps on none is brief.
    """
    cheap_seconds = MIN_EFFECT_RATIO * float(np.nansum(scores.step_seconds))
    brief = _brief(candidates, window_steps, cheap_seconds)
    if len({candidate.rows for candidate in brief}) > 1:
        # Where hiccups are usual, two may follow each other and look like one of twice the length.
        brief = _brief(candidates, 2 * window_steps, cheap_seconds)
    # Null hypothesis: a hiccup hits any of the ranks with the same probability, independently of
    # the others. The correction counts every rank that could have been hit too often.
    num_ranks = len(steps.members)
    repeated = {
        rows
        for rows, times in Counter(candidate.rows for candidate in brief).items()
        if tail_bound(times, len(brief), 1 / num_ranks) * num_ranks <= FALSE_ALARM_PROBABILITY
    }
    return [
        candidate
        for candidate in candidates
        if candidate.rows in repeated or not any(candidate is hiccup for hiccup in brief)
    ]


def _brief(candidates: list[Candidate], max_steps: int, cheap_seconds: float) -> list[Candidate]:
    return [
        candidate
        for candidate in candidates
        if np.count_nonzero(candidate.late) < max_steps
        and float(candidate.cost.sum()) < cheap_seconds
    ]
