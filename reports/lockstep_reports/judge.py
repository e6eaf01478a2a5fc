"""Judges the scores: a rank, a group of ranks, nobody, or cannot tell; with the evidence."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import known
from lockstep_reports.chance import tail_bound
from lockstep_reports.episodes import Stretch, Thresholds, find_stretches
from lockstep_reports.score import Scores, Waiting, excess, last_share
from lockstep_reports.steps import Matrix, Steps
from lockstep_reports.wording import duration, percent, plural

Kind = Literal["rank", "group", "workload", "nobody", "unknown"]
_MIN_PHASE_SHARE = 0.25
_MAX_CONFIDENCE = 0.999
_LEAST_CHANCE_SAID = 1e-12
_NAMED_RANKS = 8


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Episode:
    """A stretch of steps in which some ranks kept all others waiting.

    Attributes:
        start_step: first late step, as the job counts; ``end_step`` is the last.
        places: the same as places among the recorded steps.
        ongoing: still late at the last recorded step.
        group: the node when all its ranks were late together, or another group's name; else None.
        phase: phase of own work that was longer; None when none explains the lateness.
        phase_seconds: how much longer than the others' median, median over the steps.
        late_seconds: by how much the ranks came after all others, median over the steps.
        lost_by_step: wall time that the job lost in each of the steps, in seconds.
        last_share: share of the steps in which no other rank came later.
        confidence: one minus the bound of finding the like anywhere in a healthy run.
    """

    start_step: int
    end_step: int
    places: slice
    ongoing: bool
    ranks: tuple[int, ...]
    group: str | None
    phase: str | None
    phase_seconds: float | None
    late_seconds: float
    lost_by_step: Matrix
    last_share: float
    confidence: float
    evidence: tuple[str, ...]
    group_is_node: bool = True

    @property
    def lost_seconds(self) -> float:
        """Wall time that the job lost over all the steps."""
        return float(self.lost_by_step.sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Who was slow. ``ranks`` are the culprits, dearest first; empty for nobody and unknown."""

    kind: Kind
    ranks: tuple[int, ...] = ()
    group: str | None = None
    phase: str | None = None
    cause: str | None = None
    confidence: float | None = None
    evidence: tuple[str, ...] = ()


def judge(
    steps: Steps, scores: Scores, thresholds: Thresholds | None = None
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and the episodes it stands on in the order of their beginning."""
    thresholds = thresholds or Thresholds()
    if why := _why_unknown(steps, thresholds):
        return Verdict(kind="unknown", evidence=(why, *_missing(steps))), ()
    least = thresholds.min_effect_ratio * scores.median_step_seconds
    episodes = _episodes(steps, scores, least, thresholds)
    if not episodes:
        evidence = (*_why_nobody(steps, scores, least, thresholds), *_missing(steps))
        return Verdict(kind="nobody", evidence=evidence), ()
    return _named(episodes, _missing(steps)), tuple(sorted(episodes, key=lambda e: e.start_step))


def _named(episodes: list[Episode], missing: tuple[str, ...]) -> Verdict:
    dearest_first = sorted(episodes, key=lambda episode: -episode.lost_seconds)
    worst = dearest_first[0]
    same_kind = [e for e in dearest_first if (e.group is None) == (worst.group is None)]
    ranks = dict.fromkeys(rank for episode in same_kind for rank in episode.ranks)
    return Verdict(
        kind="rank" if worst.group is None else "group",
        ranks=tuple(ranks),
        group=worst.group,
        phase=worst.phase,
        confidence=worst.confidence,
        evidence=(*worst.evidence, *missing),
    )


def _why_unknown(steps: Steps, thresholds: Thresholds) -> str | None:
    if len(steps.members) <= 1:
        return "Only one rank was read; lateness needs another rank to compare with."
    together = int(np.count_nonzero(np.count_nonzero(~np.isnan(steps.sync), axis=0) > 1))
    if together >= thresholds.min_steps:
        return None
    return (
        f"{plural(together, 'step')} with a synchronisation of two ranks or more "
        f"{'is' if together == 1 else 'are'} recorded; {thresholds.min_steps} are needed."
    )


def _why_nobody(
    steps: Steps, scores: Scores, least: float, thresholds: Thresholds
) -> tuple[str, ...]:
    often = int(np.argmax(np.nan_to_num(scores.last_share)))
    least_share = percent(thresholds.min_effect_ratio)
    return (
        (
            f"No rank kept all others waiting by more than {duration(least)} ({least_share} "
            f"of the median step) in most of {thresholds.min_episode_steps} steps in a row or more."
        ),
        (
            f"Last most often: rank {steps.ranks[often]}, in "
            f"{percent(float(scores.last_share[often]))} of the steps; by chance "
            f"{percent(1 / len(steps.members))}."
        ),
        (
            "Thresholds are set so that of runs in which nobody is slow at most one in "
            f"{1 / thresholds.false_alarm_probability:,.0f} names somebody."
        ),
    )


def _missing(steps: Steps) -> tuple[str, ...]:
    missing = steps.missing_ranks
    if not missing:
        return ()
    more = ", ..." if len(missing) > _NAMED_RANKS else ""
    some = ", ".join(map(str, missing[:_NAMED_RANKS])) + more
    return (
        (
            f"{plural(len(missing), 'rank')} of {steps.world_size} left no readable page ({some}); "
            "what they did is not judged."
        ),
    )


def _episodes(steps: Steps, scores: Scores, least: float, thresholds: Thresholds) -> list[Episode]:
    """Episodes of single ranks; and of whole nodes where no single rank explains them."""
    stretches = find_stretches(scores.ranks.margin, least, thresholds)
    episodes = [
        _episode(steps, waiting=scores.ranks, stretch=stretch, rows=[stretch.unit])
        for stretch in stretches
    ]
    if scores.nodes is None:
        return episodes
    for stretch in find_stretches(scores.nodes.margin, least, thresholds):
        node = steps.nodes[stretch.unit]
        rows = [int(row) for row in np.nonzero(steps.on_node(node))[0]]
        if len(rows) > 1 and not any(_overlap(stretch, other) for other in stretches):
            episodes.append(
                _episode(steps, waiting=scores.nodes, stretch=stretch, rows=rows, group=node)
            )
    return episodes


def _overlap(one: Stretch, other: Stretch) -> bool:
    return one.first <= other.last and other.first <= one.last


def _episode(
    steps: Steps,
    *,
    waiting: Waiting,
    stretch: Stretch,
    rows: list[int],
    group: str | None = None,
) -> Episode:
    margin = waiting.margin[stretch.unit : stretch.unit + 1, stretch.places]
    late_seconds = float(known.median(margin))
    phase, phase_seconds = _slow_phase(steps, stretch.places, rows, late_seconds)
    episode = Episode(
        start_step=int(steps.numbers[stretch.first]),
        end_step=int(steps.numbers[stretch.last]),
        places=stretch.places,
        ongoing=stretch.last == len(steps.numbers) - 1,
        ranks=tuple(steps.ranks[row] for row in rows),
        group=group,
        phase=phase,
        phase_seconds=phase_seconds,
        late_seconds=late_seconds,
        lost_by_step=waiting.cost[stretch.unit, stretch.places],
        last_share=float(last_share(margin)[0]),
        confidence=min(_MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(),
    )
    units = len(waiting.margin)
    return replace(episode, evidence=_evidence(episode, stretch, units))


def _slow_phase(
    steps: Steps, places: slice, rows: list[int], late_seconds: float
) -> tuple[str | None, float | None]:
    """The phase of own work that is most beyond the others', when it explains the lateness.

    Medians over the steps: a single pause in another phase must not outweigh what is steady.
    """
    beyond = {
        phase: float(known.median(excess(steps.phases[phase][:, places], rows)))
        for phase in OWN_WORK_PHASES
    }
    phase = max(beyond, key=lambda name: np.nan_to_num(beyond[name], nan=-np.inf))
    if not beyond[phase] >= _MIN_PHASE_SHARE * late_seconds:
        return None, None
    return phase, beyond[phase]


def _evidence(episode: Episode, stretch: Stretch, units: int) -> tuple[str, ...]:
    who = whom(episode)
    hits = stretch.came_last
    chance = tail_bound(hits, stretch.told, 1 / units)
    phase = (
        f"Its {episode.phase} took {duration(episode.phase_seconds or 0)} longer than the median "
        "of the other ranks."
        if episode.phase
        else "No phase of its own work explains it."
    )
    return (
        (
            f"{who} came last in {hits} of {stretch.told} steps; chance gives {percent(1 / units)} "
            f"(probability of so many or more {_at_most(chance)})."
        ),
        (
            f"It kept all others waiting {duration(episode.late_seconds)} a step (median); from "
            f"{duration(stretch.threshold)} on it counts."
        ),
        phase,
        f"It was so in {stretch.late} of {stretch.told} steps, from step {episode.start_step} to "
        f"{episode.end_step}" + (", the last one recorded." if episode.ongoing else "."),
    )


def _at_most(chance: float) -> str:
    least = _LEAST_CHANCE_SAID
    return f"under {least:.0e}" if chance < least else f"at most {chance:.1g}"


def whom(episode: Episode) -> str:
    """The culprits of an episode, to begin a sentence with."""
    if episode.group is not None:
        name = f"Node {episode.group}" if episode.group_is_node else episode.group.capitalize()
        return f"{name} ({plural(len(episode.ranks), 'rank')})"
    return "Rank " + ", ".join(map(str, episode.ranks))
