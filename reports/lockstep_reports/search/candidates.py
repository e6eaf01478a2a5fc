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

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.search.late import Search, find_late, overlaps
from lockstep_reports.search.score import (
    MIN_EFFECT_RATIO,
    Scores,
    beyond_usual,
    excess,
    sample_rows,
)
from lockstep_reports.search.stretches import FALSE_ALARM_PROBABILITY, Stretch, independence
from lockstep_reports.search.units import Units, gapped_sets, groups, single_ranks

# Heights that are tried besides the threshold: parts of these quantiles of the late steps. Noise
# passes the low ones, and a height among those of a fault would have a part of it only.
_USUAL_AND_HIGH = 0.5, 0.9
_PARTS = np.array([0.0, 0.5, 0.8])
# Nats by which an end must be likelier than none: of so many places one gains less by chance.
_MIN_GAIN = 4.0
_MIN_SAME_RATIO = 0.5


def find_ends(
    lateness: Matrix, threshold: float, ends: tuple[int, int], bounds: tuple[int, int]
) -> tuple[int, int]:
    """First and last column of an episode.

    Args:
        lateness: of the unit: seconds, [series, steps], several ways to see it; NaN where unknown.
        threshold: over which a step is late, in seconds.
        ends: first and last column where it was found.
        bounds: first and last column that it may reach.
    """
    low, high = bounds
    # The best of so many places gains as much by chance.
    found = [(math.log(high - low + 1), *ends)]
    for values in lateness:
        inside = values[ends[0] : ends[1] + 1]
        inside = inside[inside > threshold]
        if not len(inside):
            continue
        within = values[low : high + 1]
        recorded = ~np.isnan(within)
        usual_and_high = np.quantile(inside, _USUAL_AND_HIGH)
        heights = np.outer(_PARTS, usual_and_high).ravel()
        capped = np.clip(values, 0.0, usual_and_high[0])
        for height in np.unique(np.maximum(heights, threshold)):
            late = recorded & (np.nan_to_num(within, nan=-np.inf) >= height)
            gain, first, last = _most_likely(late, recorded, ends[1] - low)
            inner = first + low, last + low
            found.append((gain, *_with_late_parts(capped, threshold, ends, inner)))
    _, first, last = max(found)
    return first, last


def _with_late_parts(
    capped: Matrix, threshold: float, ends: tuple[int, int], inner: tuple[int, int]
) -> tuple[int, int]:
    """The ``inner`` ends, or the outer one where what lies between the two is late too.

    The lateness [steps] of a fault that stands all the time drifts or grows, and a height between
    its parts divides it. ``capped`` is at zero and at its usual value: one pause outweighs many
    steps.
    """
    usual = _MIN_SAME_RATIO * nan_stats.mean(capped[inner[0] : inner[1] + 1])
    is_late = [
        len(part) and (nan_stats.mean(part) >= usual or nan_stats.median(part) > threshold)
        for part in (capped[ends[0] : inner[0]], capped[inner[1] + 1 : ends[1] + 1])
    ]
    return (ends[0] if is_late[0] else inner[0]), (ends[1] if is_late[1] else inner[1])


def _most_likely(late: Flags, recorded: Flags, last: int) -> tuple[float, int, int]:
    """Gain in nats of two rates over one, at the most likely ends, and the ends.

    Flags are [steps]; the begin is searched for with ``last`` as the end, the end with the begin
    that was found, and both once more.
    """
    first = 0
    for _ in range(2):
        first = _begin(late[: last + 1], recorded[: last + 1])
        last = len(late) - 1 - _begin(late[first:][::-1], recorded[first:][::-1])
    hits, steps = _counts(late), _counts(recorded)
    inside = hits[last + 1] - hits[first], steps[last + 1] - steps[first]
    outside = hits[-1] - inside[0], steps[-1] - inside[1]
    gain = _likelihood(*inside) + _likelihood(*outside) - _likelihood(hits[-1], steps[-1])
    return float(gain), first, last


def _begin(late: Flags, recorded: Flags) -> int:
    """The first step of the likeliest rise of the rate of late steps; 0 where none is likelier."""
    hits, steps = _counts(late), _counts(recorded)
    before, num_before = hits[:-1], steps[:-1]
    after, num_after = hits[-1] - before, steps[-1] - num_before
    likelihood = _likelihood(before, num_before) + _likelihood(after, num_after)
    rises = after * num_before > before * num_after
    begin = int(np.argmax(np.where(rises, likelihood, likelihood[0])))
    # Of so many places one gains that much by chance.
    is_likelier = likelihood[begin] - likelihood[0] > _MIN_GAIN
    return begin if is_likelier else int(np.argmax(late))


def _counts(flags: Flags) -> Integers:
    """Number of true flags before each step, and of all [steps + 1]."""
    return np.concatenate([[0], np.cumsum(flags)])


def _likelihood(hits: Integers, steps: Integers) -> Matrix:
    """Logarithm of the probability of so many hits in so many steps, at their own rate."""
    misses = steps - hits
    with np.errstate(divide="ignore", invalid="ignore"):
        value = hits * np.log(hits / steps) + misses * np.log(misses / steps)
    # Of nothing but hits, or nothing but misses, the probability is 1.
    return np.where((hits > 0) & (misses > 0), value, 0.0)


# Shares of the false alarm probability: most of it goes to changes of the phases, which show a
# fault soonest. The sum is 1; the kinds of units and the two references (latest other rank,
# median of the others) share one budget undivided, so the true sum of bounds is several times it.
_SHARE_OF_WAITING, _SHARE_OF_ALWAYS, _SHARE_OF_PHASES = 0.1, 0.1, 0.8
# Share of the longer work that must show as waiting of the others (decision 9).
_WAITED_SHARE = 0.5
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
    """

    units: Units
    values: Matrix
    margin: Matrix
    lateness: Matrix
    by_work: bool

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
    by_waiting = _drop_doubles(_search_waiting(steps, scores, search, is_explained))
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
    return _drop_doubles(candidate for candidate in found if _is_waited_for(steps, candidate))


def _search_work(
    steps: Steps, scores: Scores, search: Search, slow: Flags | None
) -> Iterator[Candidate]:
    """By all own work together, and by each phase: noise in one must not hide another."""
    own_work, kinds = scores.own_work, (single_ranks(steps), *groups(steps))
    always = replace(
        search,
        changed=False,
        weight=independence(sample_rows(own_work)),
        false_alarm_probability=search.false_alarm_probability * _SHARE_OF_ALWAYS,
    )
    for units in (*kinds, *gapped_sets(steps, own_work, search.threshold, search.gap // 2)):
        yield from _candidates(
            units, own_work, replace(always, num_candidates=units.num_candidates)
        )
    phase_share = search.false_alarm_probability * _SHARE_OF_PHASES / (1 + len(OWN_WORK_PHASES))
    for number, values in enumerate([own_work, *(steps.phases[name] for name in OWN_WORK_PHASES)]):
        beyond = beyond_usual(values, slow)
        changed = replace(
            search,
            always=False,
            recurrent=True,
            weight=independence(sample_rows(beyond)),
            false_alarm_probability=phase_share,
        )
        for units in kinds:
            yield from _candidates(units, beyond, changed)
        if number == 0:
            for units in gapped_sets(steps, beyond, search.threshold, search.gap // 2):
                chosen = replace(changed, num_candidates=units.num_candidates, recurrent=False)
                yield from _candidates(units, beyond, chosen)


def _candidates(units: Units, values: Matrix, search: Search) -> Iterator[Candidate]:
    """Units that are late by their work: seconds, [ranks, steps]."""
    margin = units.margin(values)
    by_margin = _Evidence(units=units, values=values, margin=margin, lateness=margin, by_work=True)
    yield from map(by_margin.candidate, find_late(margin, search))
    if search.changed and units.kind == "rank":
        # In time a rank is compared with itself, so that the median of the others is enough.
        by_deviation = replace(by_margin, lateness=units.deviation(values))
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
            values=-steps.sync,
            margin=margin,
            lateness=margin,
            by_work=False,
        )
        yield from map(evidence.candidate, find_late(margin, search))


def _is_waited_for(steps: Steps, candidate: Candidate) -> bool:
    """Whether the others waited longer than the candidate, in the late steps or the ones after."""
    first, last = candidate.stretch.first, min(candidate.stretch.last + 1, len(steps.numbers) - 1)
    sync = steps.sync_of(slice(first, last + 1))
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


def drop_hiccups(
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
