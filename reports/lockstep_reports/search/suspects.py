"""Looks for who was late, by two witnesses: the ranks' own work, and who waited for whom.

Own work tells at once and knows the phase; a rank is compared with the others and with its own
usual. It counts only where the others did wait for it. Waiting alone sees what own work does not
(a device that is slow behind the host's back), and never overrules it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.score import Scores
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.search.episodes import Stretch, Thresholds, independence
from lockstep_reports.search.late import Search, find_late
from lockstep_reports.search.units import Units, gapped_sets, groups, single_ranks

# How the chance of a false alarm is shared out: most of it to changes of the phases.
_OF_WAITING, _OF_ALWAYS, _OF_PHASES = 0.1, 0.1, 0.8
_USUAL = 0.25  # of a rank's steps are below its usual: up to three in four may be slow
_WAITED = 0.5  # of the longer work must show as waiting of the others
# One steady rank or group is told rather than a set, or what comes and goes, that explains as much.
_PLAIN_FIRST = 0.75
_BESIDE = 0.5  # of the dearest at the same time, to be told beside it
_SAMPLED_ROWS = 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Suspect:
    """A unit that was late in a stretch of steps.

    Attributes:
        rows: its ranks' rows.
        late: the late steps [steps of the stretch].
        margin: by how much it came after all others, in seconds [steps of the stretch].
        cost: what the job would have gained had it come with the next one [steps of the stretch].
        by_work: seen in own work, else in waiting.
    """

    units: Units
    stretch: Stretch
    rows: tuple[int, ...]
    late: Flags
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
        chance=thresholds.false_alarm_probability,
    )
    by_work = [s for s in _by_work(steps, scores, search) if _waited_for(steps, s)]
    kept = _without_doubles(by_work)
    return kept + [
        suspect
        for suspect in _without_doubles(list(_by_waiting(steps, scores, search)))
        if not any(_overlap(suspect.stretch, other.stretch) for other in kept)
    ]


def lasting(
    suspects: list[Suspect], run_seconds: float, units: int, thresholds: Thresholds
) -> list[Suspect]:
    """Those that anybody may be accused of: what was brief and cheap on some rank is left out.

    Hosts have hiccups of a few steps, on one rank or another. They count when they cost the run
    as much as a step must lose to be late, or hit the same ranks more often than chance would.

    Args:
        suspects: what was found.
        run_seconds: wall time of all judged steps.
        units: ranks or groups that a hiccup could have hit.
        thresholds: how many late steps are not brief, and how much is not cheap.
    """
    cheap = thresholds.min_effect_ratio * run_seconds
    brief = _brief(suspects, thresholds.window_steps, cheap)
    if len({suspect.rows for suspect in brief}) > 1:
        # Where hiccups are usual, two may meet.
        brief = _brief(suspects, 2 * thresholds.window_steps, cheap)
    often = {
        rows
        for rows, times in Counter(suspect.rows for suspect in brief).items()
        if tail_bound(times, len(brief), 1 / units) * units <= thresholds.false_alarm_probability
    }
    return [s for s in suspects if s.rows in often or not any(s is other for other in brief)]


def _brief(suspects: list[Suspect], most_steps: int, cheap_seconds: float) -> list[Suspect]:
    return [
        suspect
        for suspect in suspects
        if np.count_nonzero(suspect.late) < most_steps and float(suspect.cost.sum()) < cheap_seconds
    ]


def beyond_usual(own_work: Matrix) -> Matrix:
    """Own work beyond what is usual for the rank [ranks x steps]."""
    beyond: Matrix = own_work - nan_stats.quantile(own_work, _USUAL, axis=1)[:, None]
    return beyond


def _by_work(steps: Steps, scores: Scores, search: Search) -> Iterator[Suspect]:
    """By the whole own work, and by each phase: what is noise in one does not hide another."""
    own, kinds = scores.own_work, (single_ranks(steps), *groups(steps))
    share = search.chance * _OF_PHASES / (1 + len(OWN_WORK_PHASES))
    for_good = replace(
        search, changed=False, weight=independence(_sample(own)), chance=search.chance * _OF_ALWAYS
    )
    for units in (*kinds, *gapped_sets(steps, own, search.threshold, search.gap // 2)):
        yield from _suspects(units, own, replace(for_good, chosen=units.chosen))
    for number, values in enumerate([own, *(steps.phases[name] for name in OWN_WORK_PHASES)]):
        beyond = beyond_usual(values)
        weight = independence(_sample(beyond))
        in_time = replace(search, always=False, recurrent=True, weight=weight, chance=share)
        for units in kinds:
            yield from _suspects(units, beyond, in_time)
        if number == 0:
            for units in gapped_sets(steps, beyond, search.threshold, search.gap // 2):
                chosen = replace(in_time, chosen=units.chosen, recurrent=False)
                yield from _suspects(units, beyond, chosen)


def _sample(values: Matrix) -> Matrix:
    return values[:: 1 + len(values) // _SAMPLED_ROWS]


def _suspects(units: Units, values: Matrix, search: Search) -> Iterator[Suspect]:
    margin = units.margin(values)
    found = [(margin, stretch) for stretch in find_late(margin, search)]
    if search.changed and units.kind == "rank":
        # In time a rank is compared with itself, so that the median of the others is enough.
        beyond = units.deviation(values)
        found += [(beyond, s) for s in find_late(beyond, replace(search, recurrent=False))]
    for looked_at, stretch in found:
        places = stretch.places
        inside = margin[stretch.unit, places]
        yield Suspect(
            units=units,
            stretch=replace(stretch, came_last=int(np.count_nonzero(inside > 0))),
            rows=tuple(units.rows(stretch.unit)),
            late=looked_at[stretch.unit, places] > stretch.threshold,
            margin=inside,
            cost=units.cost(values[:, places], stretch.unit),
            by_work=True,
        )


def _by_waiting(steps: Steps, scores: Scores, search: Search) -> Iterator[Suspect]:
    kinds = [(single_ranks(steps), scores.ranks)]
    if scores.nodes is not None:
        kinds += [(units, scores.nodes) for units in groups(steps) if units.kind == "node"]
    search = replace(search, chance=search.chance * _OF_WAITING)
    for units, waiting in kinds:
        weight = independence(_sample(waiting.margin))
        for stretch in find_late(waiting.margin, replace(search, weight=weight)):
            yield Suspect(
                units=units,
                stretch=stretch,
                rows=tuple(units.rows(stretch.unit)),
                late=waiting.margin[stretch.unit, stretch.places] > stretch.threshold,
                margin=waiting.margin[stretch.unit, stretch.places],
                cost=waiting.cost[stretch.unit, stretch.places],
                by_work=False,
            )


def _waited_for(steps: Steps, suspect: Suspect) -> bool:
    """Whether the others waited longer than the suspect, in the late steps or the ones after.

    What a rank does after the step's last collective is waited for in the next step.
    """
    first, last = suspect.stretch.first, min(suspect.stretch.last + 1, len(steps.numbers) - 1)
    sync = steps.sync_of(slice(first, last + 1))
    rows = list(suspect.rows)
    lateness = nan_stats.median(np.delete(sync, rows, axis=0), axis=0) - nan_stats.median(
        sync[rows], axis=0
    )
    after = np.append(lateness[1:], lateness[-1])
    shown = np.fmax(lateness, after)[: len(suspect.late)][suspect.late]
    return bool(nan_stats.median(shown) >= _WAITED * nan_stats.median(suspect.margin[suspect.late]))


def _without_doubles(suspects: list[Suspect]) -> list[Suspect]:
    def explains(suspect: Suspect) -> float:
        lost, stretch = float(suspect.cost.sum()), suspect.stretch
        if suspect.units.kind == "ranks" or not stretch.steady:
            return lost * _PLAIN_FIRST
        # Of two stretches that lost the same, the one with fewer quick steps.
        return lost - stretch.threshold * (stretch.told - stretch.late)

    kept: list[Suspect] = []
    for suspect in sorted(suspects, key=explains, reverse=True):
        beside = [other for other in kept if _overlap(suspect.stretch, other.stretch)]
        alike = any({*suspect.rows} & {*other.rows} for other in beside)
        if not alike and all(explains(suspect) >= _BESIDE * explains(o) for o in beside):
            kept.append(suspect)
    return kept


def _overlap(one: Stretch, other: Stretch) -> bool:
    return one.first <= other.last and other.first <= one.last
