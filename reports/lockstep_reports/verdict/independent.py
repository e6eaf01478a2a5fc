"""Judges ranks that train independently, such as the workers of a parameter server.

No rank waits for another one, so nobody is late: a slow rank makes fewer updates than it could, by
parameters that are staler, and what it costs is the updates that it does not make. Its n-th step is
at another time than the n-th of the others, so paces are compared by the clock: what slows a
machine slows its ranks at once.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.account import Account
from lockstep_reports.recording.slots import measure_paces
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.late import WINDOW_STEPS
from lockstep_reports.search.score import Scores, slow_phase
from lockstep_reports.verdict.evidence import held_episodes
from lockstep_reports.verdict.losses import charge
from lockstep_reports.verdict.own_times import judge_own_times
from lockstep_reports.verdict.verdict import Episode, Verdict, rank_by_cost, unknown
from lockstep_reports.wording import duration

_MAX_NAMED = 8


class _Loss(NamedTuple):
    """What a rank did in an episode: updates, share of the clock's slots with any, own time."""

    updates: float
    share: float
    spent_seconds: float
    lost_seconds: float


def judge_independent(steps: Steps, scores: Scores) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and the episodes by what each rank lost of its own time."""
    account = scores.account
    held = held_episodes(steps, scores, charge(steps, scores), WINDOW_STEPS)
    by_furthest = [_reindex_to_leading_rank(steps, episode) for episode in held]
    rows = np.flatnonzero(np.count_nonzero(~np.isnan(steps.seconds), axis=1) > 1).tolist()
    if len(rows) <= 1:
        return unknown("Steps of one rank were read; a pace needs others to compare with."), ()
    # Own work first: the wait for a server has the noise of all machines in it, and on a crowded
    # host that for cores of threads which nobody reads.
    crowded, with_waits = scores.is_crowded, account.own_work + account.transfer
    for own in (account.own_work,) if crowded else (account.own_work, with_waits):
        paces, updates = measure_paces(steps, rows, own)
        verdict, found = judge_own_times(paces, is_independent=True)
        if found:
            break
    losses = ((episode, _measure_loss(paces, updates, episode)) for episode in found)
    least_seconds = scores.tolerated_loss_seconds
    slow = (
        _count_updates(steps, account, episode, loss)
        for episode, loss in losses
        if loss.lost_seconds > least_seconds
    )
    episodes = *slow, *by_furthest
    if (verdict.kind == "workload" and crowded) or (found and not episodes):
        verdict = replace(verdict, kind="nobody", cause="busy_host", confidence=None)
    costliest = sorted(episodes, key=rank_by_cost)
    if costliest and costliest[0].cause is not None:
        sure = costliest[0].confidence
        verdict = Verdict(kind="rank", cause=costliest[0].cause, confidence=sure)
    of_slots = {line for episode in found for line in episode.evidence}
    evidence = (
        *(line for episode in costliest[:_MAX_NAMED] for line in episode.evidence),
        *(line for line in verdict.evidence if line not in of_slots),
        _write_staleness(steps),
    )
    ranks = tuple(dict.fromkeys(episode.ranks[0] for episode in costliest))
    phase = costliest[0].phase if costliest else None
    return replace(verdict, ranks=ranks, phase=phase, evidence=evidence), episodes


def _measure_loss(paces: Steps, updates: Matrix, episode: Episode) -> _Loss:
    """What a rank spent and lost in its episode, by paces and updates [ranks, slots]."""
    row, slots = paces.ranks.index(episode.ranks[0]), episode.columns
    inside, counts = paces.seconds[row, slots], np.nan_to_num(updates[row, slots])
    others = np.delete(paces.seconds, row, axis=0)
    # Once all others have ended nobody knows what is usual.
    is_known = ~np.isnan(others).all(axis=0)
    outside = np.delete(np.where(is_known, paces.seconds[row], np.nan), slots)
    usual_ratio = 1.0
    if np.count_nonzero(~np.isnan(outside)) >= WINDOW_STEPS:
        others_outside = nan_stats.median(np.delete(others, slots, axis=1))
        usual_ratio = float(nan_stats.median(outside) / others_outside)
    spent, count = float(np.nansum(inside * counts)), float(counts.sum())
    # Against the others at the same time: a rank does not lose what slows all of them.
    usual = usual_ratio * float(nan_stats.median(others[:, slots])) * count
    share = np.count_nonzero(counts) / updates.shape[1]
    return _Loss(count, share, spent, max(0.0, spent - usual))


def _count_updates(steps: Steps, account: Account, episode: Episode, loss: _Loss) -> Episode:
    """The episode on the steps, with its phase and the updates that its rank lost."""
    rank, count = episode.ranks[0], loss.updates
    # Of a rank's time the job loses its part of all ranks' time.
    of_job = loss.lost_seconds / len(steps.members)
    run_seconds = float(np.ptp(steps.start[np.isfinite(steps.start)]))
    total = max(loss.spent_seconds, run_seconds * loss.share)
    slowdown = total / (total - loss.lost_seconds)
    first, last = np.searchsorted(steps.numbers, (episode.start_step, episode.end_step + 1))
    columns, rows = slice(int(first), int(last)), [steps.ranks.index(rank)]
    phases = {**account.own, "sync": account.transfer}
    phase, seconds = slow_phase(phases, rows, columns, episode.late_seconds)
    why = (
        f"Rank {rank} took {slowdown:.2f} times its usual time while the furthest rank went "
        f"from step {episode.start_step} to {episode.end_step}, and made {round(count):,} updates "
        f"instead of {round(count * slowdown):,}. What is lost is its own: no other rank "
        "waited for it."
    )
    return replace(
        episode,
        columns=columns,
        phase=phase,
        phase_seconds=seconds,
        lost_by_step=np.full(last - first, of_job / max(1, last - first)),
        evidence=(why,),
    )


def _reindex_to_leading_rank(steps: Steps, episode: Episode) -> Episode:
    """An episode in a rank's own steps as one in those of the furthest rank at the same time."""
    row, own = steps.ranks.index(episode.ranks[0]), episode.columns
    begins = steps.start[row, [own.start, own.stop - 1]]
    first, last = (int(steps.numbers[(steps.start <= t).any(axis=0)].max()) for t in begins)
    start, stop = np.searchsorted(steps.numbers, (first, last + 1)).tolist()
    # Of a rank's time the job loses its part of all ranks' time.
    of_job = episode.lost_seconds / len(steps.members)
    moved = replace(
        episode,
        start_step=first,
        end_step=last,
        columns=slice(start, stop),
        lost_by_step=np.full(stop - start, of_job / (stop - start)),
    )
    return replace(moved, evidence=(_why_held(moved, episode.lost_seconds),))


def _why_held(episode: Episode, seconds: float) -> str:
    what = "stood still" if episode.cause == "process_stopped" else "collected garbage"
    return (
        f"The process of rank {episode.ranks[0]} {what} for {duration(seconds)} while the furthest "
        f"rank went from step {episode.start_step} to {episode.end_step}. What is lost is its own: "
        "no other rank waited for it."
    )


def _write_staleness(steps: Steps) -> str:
    """How stale the parameters were by which the stalest ranks made their updates."""
    stale = {member.rank: member.staleness_steps or 0.0 for member in steps.members}
    stalest = sorted(stale, key=lambda rank: -stale[rank])[:_MAX_NAMED]
    means = ", ".join(f"rank {rank} {stale[rank]:.1f}" for rank in stalest)
    return f"Updates of others that an update lacked on the mean (staleness in steps): {means}."
