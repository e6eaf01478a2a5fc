"""Judges ranks that train independently, such as the workers of a parameter server.

No rank waits for another one, so nobody is late: a slow rank makes fewer updates than it could, by
parameters that are staler, and what it costs is the updates that it does not make. Its n-th step is
at another time than the n-th of the others, so paces are compared by the clock: what slows a
machine slows its ranks at once.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import PLANNED_PHASES, slow_phase
from lockstep_reports.search.stretches import WINDOW_STEPS
from lockstep_reports.verdict.own_times import judge_own_times
from lockstep_reports.verdict.verdict import Episode, Verdict, rank_by_cost, unknown

# A slot of the clock holds a step of the slowest rank, or a 60th of the run: a fault of a third of
# it then fills a window of the search.
_MIN_SLOTS = 60
_MAX_NAMED = 8


class _Paces(NamedTuple):
    """Paces by the clock: of ``steps`` a column is a slot, its seconds what a step took there.

    Its number is the furthest step of any rank; ``updates`` are those of each rank [ranks, slots].
    """

    steps: Steps
    updates: Matrix


def judge_independent(steps: Steps) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and the episodes by what each rank lost of its own time."""
    rows = np.flatnonzero(np.count_nonzero(~np.isnan(steps.seconds), axis=1) > 1).tolist()
    if len(rows) <= 1:
        return unknown("Steps of one rank were read; a pace needs others to compare with."), ()
    paces = _measure_paces(steps, rows)
    verdict, found = judge_own_times(paces.steps, is_independent=True)
    episodes = tuple(_count_updates(steps, paces, episode) for episode in found)
    costliest = sorted(episodes, key=rank_by_cost)
    of_slots = {line for episode in found for line in episode.evidence}
    evidence = (
        *(line for episode in costliest[:_MAX_NAMED] for line in episode.evidence),
        *(line for line in verdict.evidence if line not in of_slots),
        _write_staleness(steps),
    )
    ranks = tuple(dict.fromkeys(episode.ranks[0] for episode in costliest))
    phase = costliest[0].phase if costliest else None
    return replace(verdict, ranks=ranks, phase=phase, evidence=evidence), episodes


def _measure_paces(steps: Steps, rows: Sequence[int]) -> _Paces:
    """Paces without planned work and without waits for a core, which other processes have."""
    apart = np.sum([np.nan_to_num(steps.phases[name]) for name in PLANNED_PHASES], axis=0)
    apart += 0.0 if steps.run_queue is None else np.nan_to_num(steps.run_queue)
    known = [np.flatnonzero(~np.isnan(steps.seconds[row])) for row in rows]
    ends = steps.start + steps.seconds
    clocks = [
        np.append(steps.start[row, columns[0]], ends[row, columns])
        for row, columns in zip(rows, known, strict=True)
    ]
    edges = _choose_edges(clocks)
    updates, seconds, numbers = np.full((3, len(rows), len(edges)), np.nan)
    for at, (row, columns) in enumerate(zip(rows, known, strict=True)):
        own_seconds = (steps.seconds - apart)[row, columns].cumsum()
        for course, values in (
            (updates, np.arange(1.0, len(columns) + 1)),
            (seconds, own_seconds),
            (numbers, steps.numbers[columns]),
        ):
            reached = np.append(0.0, values)
            course[at] = np.interp(edges, clocks[at], reached, left=np.nan, right=np.nan)
    made = np.diff(updates, axis=1)
    paced = replace(
        steps,
        members=tuple(steps.members[row] for row in rows),
        numbers=np.ceil(nan_stats.highest(numbers, axis=0)[1:]).astype(np.int64),
        seconds=np.diff(seconds, axis=1) / made,
    )
    return _Paces(paced, made)


def _choose_edges(clocks: Sequence[Matrix]) -> Matrix:
    """Wall clock at the edges of the slots, by each rank's begin and ends of steps."""
    begin, end = min(clock[0] for clock in clocks), max(clock[-1] for clock in clocks)
    slowest = max((clock[-1] - clock[0]) / (len(clock) - 1) for clock in clocks)
    most = max(len(clock) for clock in clocks) - 1
    return np.linspace(begin, end, min(most, max(_MIN_SLOTS, int((end - begin) / slowest))) + 1)


def _count_updates(steps: Steps, paces: _Paces, episode: Episode) -> Episode:
    """The episode on the steps, with its phase and the updates that its rank did not make."""
    (rank,), slots = episode.ranks, episode.columns
    row = paces.steps.ranks.index(rank)
    inside, made = paces.steps.seconds[row, slots], np.nan_to_num(paces.updates[row, slots])
    outside = np.delete(paces.steps.seconds[row], slots)
    if np.count_nonzero(~np.isnan(outside)) < WINDOW_STEPS:
        outside = np.delete(paces.steps.seconds[:, slots], row, axis=0)
    spent, usual = float(np.nansum(inside * made)), float(nan_stats.median(outside) * made.sum())
    lost, slowdown = max(0.0, spent - usual), spent / usual
    first, last = np.searchsorted(steps.numbers, (episode.start_step, episode.end_step + 1))
    columns = slice(int(first), int(last))
    phase, seconds = slow_phase(
        steps,
        [steps.ranks.index(rank)],
        columns,
        episode.late_seconds,
        (*OWN_WORK_PHASES, "sync"),
    )
    why = (
        f"Rank {rank} took {slowdown:.2f} times its usual time while the furthest rank went from "
        f"step {episode.start_step} to {episode.end_step}, and made {round(made.sum()):,} updates "
        f"instead of {round(slowdown * made.sum()):,}. What is lost is its own: no other rank "
        "waited for it."
    )
    return replace(
        episode,
        columns=columns,
        phase=phase,
        phase_seconds=seconds,
        # The job loses of a rank's time its part of the ranks.
        lost_by_step=np.full(last - first, lost / len(steps.members) / max(1, last - first)),
        evidence=(why,),
    )


def _write_staleness(steps: Steps) -> str:
    """How stale the parameters were by which the stalest ranks made their updates."""
    stale = {member.rank: member.staleness_steps or 0.0 for member in steps.members}
    stalest = sorted(stale, key=lambda rank: -stale[rank])[:_MAX_NAMED]
    means = ", ".join(f"rank {rank} {stale[rank]:.1f}" for rank in stalest)
    return f"Updates of others that an update lacked on the mean (staleness in steps): {means}."
