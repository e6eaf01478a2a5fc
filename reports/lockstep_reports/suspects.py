"""Looks for who was late, by two witnesses: the ranks' own work, and who waited for whom.

Own work tells at once and knows the phase; a rank is compared with the others and with its own
usual. It counts only where the others did wait for it. Waiting alone sees what own work does not
(a device that is slow behind the host's back), and never overrules it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports import known
from lockstep_reports.episodes import Stretch, Thresholds, independence
from lockstep_reports.late import Search, find_late
from lockstep_reports.score import Scores
from lockstep_reports.steps import Matrix, Steps
from lockstep_reports.units import Units, gapped_sets, groups, single_ranks

_WITNESSES = 2
_USUAL = 0.25  # of a rank's steps are below its usual: up to three in four may be slow
_WAITED = 0.5  # of the longer work must show as waiting of the others
_SET_COUNTS = 0.75
_SAMPLED_ROWS = 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Suspect:
    """A unit that was late in a stretch of steps.

    Attributes:
        rows: its ranks' rows.
        margin: by how much it came after all others, in seconds [steps of the stretch].
        cost: what the job would have gained had it come with the next one [steps of the stretch].
        by_work: seen in own work, else in waiting.
    """

    units: Units
    stretch: Stretch
    rows: tuple[int, ...]
    margin: Matrix
    cost: Matrix
    by_work: bool


def find_suspects(
    steps: Steps, scores: Scores, threshold: float, thresholds: Thresholds
) -> list[Suspect]:
    """Who was late; of those that tell of the same ranks and steps, the one that explains most."""
    search = Search(
        threshold=threshold,
        mean=threshold / 2,
        gap=2 * thresholds.window_steps,
        weight=1.0,
        chance=thresholds.false_alarm_probability / _WITNESSES,
    )
    by_work = [s for s in _by_work(steps, scores, search) if _waited_for(steps, s)]
    kept = _without_doubles(by_work)
    return kept + [
        suspect
        for suspect in _without_doubles(list(_by_waiting(steps, scores, search)))
        if not any(_overlap(suspect.stretch, other.stretch) for other in kept)
    ]


def beyond_usual(own_work: Matrix) -> Matrix:
    """Own work beyond what is usual for the rank [ranks x steps]."""
    beyond: Matrix = own_work - known.quantile(own_work, _USUAL, axis=1)[:, None]
    return beyond


def _by_work(steps: Steps, scores: Scores, search: Search) -> Iterator[Suspect]:
    own = scores.own_work
    beyond = beyond_usual(own)
    ranks = single_ranks(steps)
    sample = slice(None, None, 1 + len(own) // _SAMPLED_ROWS)
    search = replace(search, weight=independence(ranks.margin(beyond)[sample]))
    in_time = replace(search, always=False, recurrent=True)
    for_good = replace(search, always=True, changed=False)
    for units in (ranks, *groups(steps)):
        yield from _suspects(units, beyond, in_time)
        yield from _suspects(units, own, for_good)
    block = search.gap // 2
    for values, plain in ((beyond, in_time), (own, for_good)):
        for units in gapped_sets(steps, values, search.threshold, block):
            chosen = replace(plain, chosen=units.chosen, recurrent=False)
            yield from _suspects(units, values, chosen)


def _suspects(units: Units, values: Matrix, search: Search) -> Iterator[Suspect]:
    margin = units.margin(values)
    for stretch in find_late(margin, search):
        yield Suspect(
            units=units,
            stretch=stretch,
            rows=tuple(units.rows(stretch.unit)),
            margin=margin[stretch.unit, stretch.places],
            cost=units.cost(values[:, stretch.places], stretch.unit),
            by_work=True,
        )


def _by_waiting(steps: Steps, scores: Scores, search: Search) -> Iterator[Suspect]:
    kinds = [(single_ranks(steps), scores.ranks)]
    if scores.nodes is not None:
        kinds += [(units, scores.nodes) for units in groups(steps) if units.kind == "node"]
    for units, waiting in kinds:
        weight = independence(waiting.margin[:: 1 + len(waiting.margin) // _SAMPLED_ROWS])
        for stretch in find_late(waiting.margin, replace(search, weight=weight)):
            yield Suspect(
                units=units,
                stretch=stretch,
                rows=tuple(units.rows(stretch.unit)),
                margin=waiting.margin[stretch.unit, stretch.places],
                cost=waiting.cost[stretch.unit, stretch.places],
                by_work=False,
            )


def _waited_for(steps: Steps, suspect: Suspect) -> bool:
    """Whether the others waited longer than the suspect, in the late steps or the ones after.

    What a rank does after the step's last collective is waited for in the next step.
    """
    first, last = suspect.stretch.first, min(suspect.stretch.last + 1, len(steps.numbers) - 1)
    sync = steps.sync[:, first : last + 1]
    rows = list(suspect.rows)
    lateness = known.median(np.delete(sync, rows, axis=0), axis=0) - known.median(
        sync[rows], axis=0
    )
    after = np.append(lateness[1:], lateness[-1])
    late = suspect.margin > suspect.stretch.threshold
    shown = np.fmax(lateness, after)[: len(late)][late]
    return bool(known.median(shown) >= _WAITED * known.median(suspect.margin[late]))


def _without_doubles(suspects: list[Suspect]) -> list[Suspect]:
    def explains(suspect: Suspect) -> float:
        return float(suspect.cost.sum()) * (_SET_COUNTS if suspect.units.kind == "ranks" else 1)

    kept: list[Suspect] = []
    for suspect in sorted(suspects, key=explains, reverse=True):
        if not any(
            _overlap(suspect.stretch, other.stretch) and {*suspect.rows} & {*other.rows}
            for other in kept
        ):
            kept.append(suspect)
    return kept


def _overlap(one: Stretch, other: Stretch) -> bool:
    return one.first <= other.last and other.first <= one.last
