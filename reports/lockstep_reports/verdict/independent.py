"""Judges ranks that train independently, such as the workers of a parameter server.

No rank waits for another one, so nobody is late: a slow rank makes fewer updates than it could, by
parameters that are staler, and what it costs is the updates that it does not make.
"""

from dataclasses import replace

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import PLANNED_PHASES, slow_phase
from lockstep_reports.verdict.own_times import judge_own_times
from lockstep_reports.verdict.verdict import Episode, Verdict, rank_by_cost
from lockstep_reports.wording import list_ranks

_MAX_NAMED = 8


def judge_independent(steps: Steps) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and the episodes by what each rank lost of its own time."""
    planned = np.sum([np.nan_to_num(steps.phases[name]) for name in PLANNED_PHASES], axis=0)
    working = replace(steps, seconds=steps.seconds - planned)
    verdict, found = judge_own_times(working, is_independent=True)
    episodes = tuple(_with_phase(working, episode) for episode in found)
    costliest = sorted(episodes, key=rank_by_cost)[:_MAX_NAMED]
    evidence = (
        *verdict.evidence,
        *(_lost_updates(working, episode) for episode in costliest),
        _staleness(steps),
    )
    phase = costliest[0].phase if costliest else None
    return replace(verdict, phase=phase, evidence=evidence), episodes


def _with_phase(steps: Steps, episode: Episode) -> Episode:
    """The episode with the phase that explains it; that may be the exchange itself."""
    rows = [row for row, rank in enumerate(steps.ranks) if rank in episode.ranks]
    names = (*OWN_WORK_PHASES, "sync")
    phase, seconds = slow_phase(steps, rows, episode.columns, episode.late_seconds, names)
    return replace(episode, phase=phase, phase_seconds=seconds)


def _lost_updates(steps: Steps, episode: Episode) -> str:
    """How many updates the rank made, and how many it would have made at its usual pace."""
    seconds = steps.seconds[np.isin(steps.ranks, episode.ranks), episode.columns]
    updates, spent = int(np.count_nonzero(~np.isnan(seconds))), float(np.nansum(seconds))
    possible = updates * spent / (spent - episode.lost_seconds * len(steps.members))
    return (
        f"Rank {list_ranks(episode.ranks)} made {updates:,} updates in that time instead of "
        f"{round(possible):,}. What is lost is its own, and no other rank waited for it."
    )


def _staleness(steps: Steps) -> str:
    """How stale the parameters were by which the stalest ranks made their updates."""
    stale = {member.rank: member.staleness_steps or 0.0 for member in steps.members}
    stalest = sorted(stale, key=lambda rank: -stale[rank])[:_MAX_NAMED]
    means = ", ".join(f"rank {rank} {stale[rank]:.1f}" for rank in stalest)
    return f"Updates of others that an update lacked on the mean (staleness in steps): {means}."
