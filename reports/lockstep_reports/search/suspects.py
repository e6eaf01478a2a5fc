"""Searches for late units in two evidence sources: the ranks' own work, and who waited for whom.

Own work shows lateness at once and names the phase; a rank is compared with the others and with
its own usual. It counts only where the others did wait for the rank. Waiting alone shows what own
work does not (a device that is slow without the host noticing), and never overrules own work
(decision 9).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.ends import find_ends
from lockstep_reports.search.late import Search, find_late, overlaps
from lockstep_reports.search.score import Scores, excess
from lockstep_reports.search.stretches import Stretch, independence
from lockstep_reports.search.units import Units, gapped_sets, groups, single_ranks
from lockstep_reports.search.usual import beyond_usual, sample_rows

# Shares of the false alarm probability: most of it goes to changes of the phases, which show a
# fault soonest. The sum is 1; the kinds of units and the two references (latest other rank,
# median of the others) share one budget undivided, so the true sum of bounds is several times it.
_SHARE_OF_WAITING, _SHARE_OF_ALWAYS, _SHARE_OF_PHASES = 0.1, 0.1, 0.8
# Share of the longer work that must show as waiting of the others (decision 9).
_WAITED_SHARE = 0.5
# One steady rank or group is preferred to a set, or to what comes and goes, that explains as much.
_SET_DISCOUNT = 0.75
# Share of the costliest suspect's loss that another one must reach to be named for the same steps.
_MIN_SHARE_OF_COSTLIEST = 0.5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Suspect:
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

    def suspect(self, stretch: Stretch) -> Suspect:
        """The unit of a stretch, with what it did there."""
        columns, unit = stretch.columns, stretch.unit
        margin = self.margin[unit, columns]
        cost = self.units.cost(self.values[:, columns], unit)
        return Suspect(
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


def place_ends(suspects: list[Suspect], num_steps: int) -> list[Suspect]:
    """The suspects from the step in which their lateness began to the one in which it ended."""
    placed: list[Suspect] = []
    for suspect in sorted(suspects, key=lambda each: each.stretch.first):
        others = [s for s in suspects if s is not suspect and {*s.rows} & {*suspect.rows}]
        before = [s.stretch.last for s in placed if {*s.rows} & {*suspect.rows}]
        after = [s.stretch.first for s in others if s.stretch.first > suspect.stretch.last]
        bounds = max(before, default=-1) + 1, min(after, default=num_steps) - 1
        placed.append(_with_ends(suspect, bounds))
    return placed


def _with_ends(suspect: Suspect, bounds: tuple[int, int]) -> Suspect:
    evidence, stretch, unit = suspect.evidence, suspect.stretch, suspect.stretch.unit
    seen = np.array([evidence.lateness[unit], excess(evidence.values, list(suspect.rows))])
    ends = find_ends(seen, stretch.threshold, (stretch.first, stretch.last), bounds)
    return _between(suspect, ends)


def _between(suspect: Suspect, ends: tuple[int, int]) -> Suspect:
    """The suspect with other ends, where it was late between them."""
    evidence, stretch = suspect.evidence, suspect.stretch
    lateness = evidence.lateness[stretch.unit, ends[0] : ends[1] + 1]
    late = lateness > stretch.threshold
    if not late.any():
        return suspect
    num_known = int(np.count_nonzero(~np.isnan(lateness)))
    moved = replace(
        stretch, first=ends[0], last=ends[1], num_late=int(late.sum()), num_known=num_known
    )
    return evidence.suspect(moved)


def find_suspects(steps: Steps, scores: Scores, window_steps: int) -> list[Suspect]:
    """Who was late; of suspects with common ranks and steps, the one that explains most."""
    threshold = scores.threshold
    search = Search(threshold=threshold, min_mean_loss=threshold / 2, gap=2 * window_steps)
    by_work = _find_by_work(steps, scores, search)
    if len({suspect.rows for suspect in by_work}) > 1:
        # A rank whose slow steps count as usual makes the others look slow in its healthy ones.
        by_work = _find_by_work(steps, scores, search, _late_cells(steps, by_work))
    # Steps in which one's work explains the waiting say nothing of who else keeps others waiting.
    is_explained: Flags = np.asarray(_late_cells(steps, by_work).any(axis=0))
    by_waiting = _drop_doubles(_search_waiting(steps, scores, search, is_explained))
    return by_work + [
        suspect
        for suspect in by_waiting
        if not any(overlaps(suspect.stretch, other.stretch) for other in by_work)
    ]


def _late_cells(steps: Steps, suspects: list[Suspect]) -> Flags:
    """The stretches of suspects [ranks, steps]."""
    cells = np.zeros(steps.seconds.shape, dtype=bool)
    for suspect in suspects:
        cells[list(suspect.rows), suspect.stretch.columns] = True
    return cells


def _find_by_work(
    steps: Steps, scores: Scores, search: Search, slow: Flags | None = None
) -> list[Suspect]:
    found = _search_work(steps, scores, search, slow)
    return _drop_doubles(suspect for suspect in found if _is_waited_for(steps, suspect))


def _search_work(
    steps: Steps, scores: Scores, search: Search, slow: Flags | None
) -> Iterator[Suspect]:
    """By all own work together, and by each phase: noise in one must not hide another."""
    own_work, kinds = scores.own_work, (single_ranks(steps), *groups(steps))
    always = replace(
        search,
        changed=False,
        weight=independence(sample_rows(own_work)),
        false_alarm_probability=search.false_alarm_probability * _SHARE_OF_ALWAYS,
    )
    for units in (*kinds, *gapped_sets(steps, own_work, search.threshold, search.gap // 2)):
        yield from _suspects(units, own_work, replace(always, num_candidates=units.num_candidates))
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
            yield from _suspects(units, beyond, changed)
        if number == 0:
            for units in gapped_sets(steps, beyond, search.threshold, search.gap // 2):
                chosen = replace(changed, num_candidates=units.num_candidates, recurrent=False)
                yield from _suspects(units, beyond, chosen)


def _suspects(units: Units, values: Matrix, search: Search) -> Iterator[Suspect]:
    """Units that are late by their work: seconds, [ranks, steps]."""
    margin = units.margin(values)
    by_margin = _Evidence(units=units, values=values, margin=margin, lateness=margin, by_work=True)
    yield from map(by_margin.suspect, find_late(margin, search))
    if search.changed and units.kind == "rank":
        # In time a rank is compared with itself, so that the median of the others is enough.
        by_deviation = replace(by_margin, lateness=units.deviation(values))
        steady = find_late(by_deviation.lateness, replace(search, recurrent=False))
        yield from map(by_deviation.suspect, steady)


def _search_waiting(
    steps: Steps, scores: Scores, search: Search, is_explained: Flags
) -> Iterator[Suspect]:
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
        yield from map(evidence.suspect, find_late(margin, search))


def _is_waited_for(steps: Steps, suspect: Suspect) -> bool:
    """Whether the others waited longer than the suspect, in the late steps or the ones after."""
    first, last = suspect.stretch.first, min(suspect.stretch.last + 1, len(steps.numbers) - 1)
    sync = steps.sync_of(slice(first, last + 1))
    rows = list(suspect.rows)
    lateness = nan_stats.median(np.delete(sync, rows, axis=0), axis=0) - nan_stats.median(
        sync[rows], axis=0
    )
    # What a rank does after the step's last collective is waited for in the next step.
    next_lateness = np.append(lateness[1:], lateness[-1])
    waited = np.fmax(lateness, next_lateness)[: len(suspect.late)][suspect.late]
    longer_work = suspect.margin[suspect.late]
    return bool(nan_stats.median(waited) >= _WAITED_SHARE * nan_stats.median(longer_work))


def _drop_doubles(suspects: Iterable[Suspect]) -> list[Suspect]:
    """The suspects that explain most, without others that share ranks and steps with them."""
    selected: list[Suspect] = []
    for suspect in sorted(suspects, key=_explained_seconds, reverse=True):
        rivals = [other for other in selected if overlaps(suspect.stretch, other.stretch)]
        shares_ranks = any({*suspect.rows} & {*other.rows} for other in rivals)
        is_dear = all(
            _explained_seconds(suspect) >= _MIN_SHARE_OF_COSTLIEST * _explained_seconds(other)
            for other in rivals
        )
        if not shares_ranks and is_dear:
            selected.append(suspect)
    return selected


def _explained_seconds(suspect: Suspect) -> float:
    """Seconds that a suspect lost the job, less what makes it a worse explanation."""
    lost, stretch = float(suspect.cost.sum()), suspect.stretch
    if suspect.units.kind == "ranks" or not stretch.is_steady:
        return lost * _SET_DISCOUNT
    # Of two stretches that lost the same, the one with fewer quick steps.
    return lost - stretch.threshold * (stretch.num_known - stretch.num_late)
