"""Judges the scores: a rank, a group of ranks, the workload, nobody, or cannot tell."""

from dataclasses import replace

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags
from lockstep_reports.recording.steps import Steps
from lockstep_reports.score import Scores, excess, last_share
from lockstep_reports.search.episodes import Thresholds
from lockstep_reports.search.suspects import Suspect, find_suspects, lasting
from lockstep_reports.verdict.causes import cause_of
from lockstep_reports.verdict.evidence import (
    missing_ranks,
    why_brief,
    why_episode,
    why_nobody,
    why_unknown,
)
from lockstep_reports.verdict.verdict import Episode, Verdict
from lockstep_reports.verdict.workload import explained_by_load, workload

_MIN_PHASE_SHARE = 0.25
_MAX_CONFIDENCE = 0.999
_LEAST_SHARE = 0.1  # of the dearest episode's loss


def judge(
    steps: Steps, scores: Scores, thresholds: Thresholds | None = None
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and the episodes it stands on in the order of their beginning."""
    thresholds = thresholds or Thresholds()
    missing = missing_ranks(steps)
    if why := why_unknown(steps, thresholds):
        return Verdict(kind="unknown", evidence=(why, *missing)), ()
    least = thresholds.min_effect_ratio * scores.median_step_seconds
    found = find_suspects(steps, scores, least, thresholds)
    whole = float(np.nansum(scores.step_seconds))
    suspects = lasting(found, whole, len(steps.members), thresholds)
    loads = [explained_by_load(steps, suspect) for suspect in suspects]
    accused = [suspect for suspect, load in zip(suspects, loads, strict=True) if load is None]
    if accused:
        episodes = [_episode(steps, suspect) for suspect in accused]
        in_order = tuple(sorted(episodes, key=lambda e: (e.start_step, e.ranks)))
        return _named(steps, episodes, missing), in_order
    verdict = next((load for load in loads if load), None) or workload(
        steps, scores, least, thresholds
    )
    if verdict is not None:
        return replace(verdict, evidence=(*verdict.evidence, *missing)), ()
    ranks = [tuple(steps.ranks[row] for row in suspect.rows) for suspect in found]
    hiccups = why_brief(ranks, sum(float(suspect.cost.sum()) for suspect in found) / whole)
    evidence = (*why_nobody(steps, scores, least, thresholds), *hiccups, *missing)
    return Verdict(kind="nobody", evidence=evidence), ()


def _named(steps: Steps, episodes: list[Episode], missing: tuple[str, ...]) -> Verdict:
    dearest_first = sorted(episodes, key=lambda episode: -episode.lost_seconds)
    worst = dearest_first[0]
    same_kind = [e for e in dearest_first if (e.group is None) == (worst.group is None)]
    # What cost next to nothing beside the dearest is told as an episode: it accuses nobody, nor is
    # it the dearest come again.
    dear = [e for e in same_kind if e.lost_seconds >= _LEAST_SHARE * worst.lost_seconds]
    ranks = dict.fromkeys(rank for episode in dear for rank in episode.ranks)
    again = sum(episode.ranks == worst.ranks for episode in dear)
    recurrence = (f"It happened {again} times in the recording.",) if again > 1 else ()
    cause, why = cause_of(steps, worst)
    return Verdict(
        kind="rank" if worst.group is None else "group",
        ranks=tuple(ranks),
        group=worst.group,
        phase=worst.phase,
        cause=cause,
        confidence=worst.confidence,
        evidence=(*worst.evidence, *recurrence, *why, *missing),
    )


def _episode(steps: Steps, suspect: Suspect) -> Episode:
    stretch, rows = suspect.stretch, list(suspect.rows)
    late = suspect.late
    late_seconds = float(nan_stats.median(suspect.margin[late]))
    phase, phase_seconds = _slow_phase(steps, suspect, late, late_seconds)
    grouped = suspect.units.kind not in {"rank", "ranks"}
    episode = Episode(
        start_step=int(steps.numbers[stretch.first]),
        end_step=int(steps.numbers[stretch.last]),
        columns=stretch.places,
        ongoing=stretch.last >= len(steps.numbers) - 2,
        ranks=tuple(steps.ranks[row] for row in rows),
        group=suspect.units.names[stretch.unit] if grouped else None,
        phase=phase,
        phase_seconds=phase_seconds,
        late_seconds=late_seconds,
        lost_by_step=np.nan_to_num(suspect.cost),
        last_share=float(last_share(suspect.margin[None])[0]),
        confidence=min(_MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(),
        group_is_node=suspect.units.kind == "node",
    )
    units = max(2, len(suspect.units.names))
    return replace(episode, evidence=why_episode(episode, stretch, units))


def _slow_phase(
    steps: Steps, suspect: Suspect, late: Flags, late_seconds: float
) -> tuple[str | None, float | None]:
    """The phase of own work that is most beyond the others', when it explains the lateness.

    Medians over the late steps: a single pause in another phase must not outweigh what is steady.
    """
    places = np.arange(suspect.stretch.first, suspect.stretch.last + 1)[late]
    beyond = {
        phase: float(nan_stats.median(excess(steps.phases[phase][:, places], list(suspect.rows))))
        for phase in OWN_WORK_PHASES
    }
    phase = max(beyond, key=lambda name: np.nan_to_num(beyond[name], nan=-np.inf))
    if not beyond[phase] >= _MIN_PHASE_SHARE * late_seconds:
        return None, None
    return phase, beyond[phase]
