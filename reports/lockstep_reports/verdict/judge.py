"""Decides who was slow: a rank, a group, the workload, nobody, or unknown."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.account import HELD
from lockstep_reports.recording.recording import CollectiveLog, Recording
from lockstep_reports.recording.steps import Steps, timed_steps
from lockstep_reports.search.candidates import Candidate, is_queued, place_ends, search
from lockstep_reports.search.late import WINDOW_STEPS, Stretch
from lockstep_reports.search.score import Scores, beyond_usual, excess, score
from lockstep_reports.verdict import sentences
from lockstep_reports.verdict.episodes import episode_of, held_episodes
from lockstep_reports.verdict.hang import judge_hang, judge_launches
from lockstep_reports.verdict.losses import (
    Loss,
    charge,
    list_episode_losses,
    list_losses,
    with_costs,
)
from lockstep_reports.verdict.own_times import judge_independent, judge_own_times
from lockstep_reports.verdict.verdict import (
    MIN_SHARE,
    Episode,
    Verdict,
    rank_by_cost,
    slow_workload,
    unknown,
)
from lockstep_reports.wording import duration, list_ranks, percent, plural

# Share of the costliest episode's loss; an episode that lost less names nobody.
_MIN_SHARE_OF_COSTLIEST = 0.1
# Of the lost time; less leaves room for another cause of equal size. A step costs a * tokens +
# b * sum(length^2) (ResiHP), so neither term explains all of it.
_MIN_EXPLAINED_SHARE = 0.5
# A profiler trace holds few collectives, a Prometheus few slots of time, and a job that meets in
# rounds few of them. The bound on false
# alarms holds at any number of steps, so shorter windows only lose sensitivity.
_SHORT_WINDOW_STEPS = 5
# How much more work than usual all ranks must have in slow steps to explain these by it.
_MIN_MORE_WORK = 1.05


class Judgement(NamedTuple):
    """The verdict, the episodes that it rests on, and the lost time by its owners."""

    verdict: Verdict
    episodes: tuple[Episode, ...] = ()
    losses: tuple[Loss, ...] = ()


def judge(steps: Steps, scores: Scores, window_steps: int = WINDOW_STEPS) -> Judgement:
    """The verdict, and the episodes in the order of their beginning."""
    missing = sentences.missing_ranks(steps)
    if why := sentences.why_unknown(steps, scores, 2 * window_steps):
        return Judgement(unknown(why, *missing))
    found, common = search(steps, scores, window_steps)
    loads = [_explain_by_load(steps, candidate) for candidate in found]
    slow = [late for late, load in zip(found, loads, strict=True) if load is None]
    placed = place_ends(slow, len(steps.numbers))
    own = [episode_of(steps, scores, c) for c in placed if not is_queued(steps, scores, c)]
    charges = charge(steps, scores, own)
    costs = {name: charges.cost_of(name, steps.seconds.shape) for name in HELD}
    own += held_episodes(steps, scores, costs, window_steps)
    episodes = with_costs(steps, sorted(own, key=lambda e: (e.start_step, e.ranks)), charges)
    losses = list_losses(steps, scores, charges, episodes)
    late_seconds = sum(episode.lost_seconds for episode in episodes)
    verdict = next(filter(None, loads), None)
    if late_seconds >= MIN_SHARE * scores.covered_seconds:
        verdict = _name_slow(steps, scores, episodes, losses) or verdict
    if verdict is None and (blind := tuple(sentences.why_blind(steps, scores))):
        verdict = unknown(*blind)
    if verdict is None and common is not None:
        verdict = _judge_common(steps, scores, *common)
    if verdict is None:
        evidence = tuple(sentences.why_nobody(steps, scores, late_seconds))
        verdict = Verdict(kind="nobody", evidence=evidence)
    verdict = sentences.judge_losses(steps, scores, verdict, losses)
    return Judgement(replace(verdict, evidence=(*verdict.evidence, *missing)), episodes, losses)


def _name_slow(
    steps: Steps, scores: Scores, episodes: Sequence[Episode], losses: Sequence[Loss]
) -> Verdict | None:
    # What cost next to nothing compared with the costliest stays an episode: it names nobody,
    # and does not count as a recurrence. Other work takes caches as well as cores.
    of_host = [loss.lost_seconds for loss in losses if loss.kind == "busy_host"]
    costliest = max([*(e.lost_seconds for e in episodes), *of_host], default=0.0)
    least = _MIN_SHARE_OF_COSTLIEST * costliest
    beside_waits = scores.tolerated_loss_seconds
    slow = [
        episode
        for episode in episodes
        if episode.lost_seconds >= least
        and (episode.cause or _own_seconds(steps, scores, episode) >= beside_waits)
    ]
    if not slow:
        return None
    worst = min(slow, key=rank_by_cost)
    same_kind = [e for e in slow if (e.group is None) == (worst.group is None)]
    ranks = dict.fromkeys(r for e in sorted(same_kind, key=rank_by_cost) for r in e.ranks)
    times = sum(episode.ranks == worst.ranks for episode in same_kind)
    recurrence = (f"It happened {times} times in the recording.",) if times > 1 else ()
    cause, why = next(_causes(steps, worst), (None, ()))
    return Verdict(
        kind="rank" if worst.group is None else "group",
        ranks=tuple(ranks),
        group=worst.group,
        phase=worst.phase,
        cause=cause,
        confidence=worst.confidence,
        evidence=(*worst.evidence, *recurrence, *why),
    )


def _own_seconds(steps: Steps, scores: Scores, episode: Episode) -> float:
    """What an episode cost without the time that its ranks waited longer than others for cores."""
    if scores.account.queued is None:
        return episode.lost_seconds
    rows = np.flatnonzero(np.isin(steps.ranks, episode.ranks)).tolist()
    longer = float(np.nansum(excess(scores.account.queued[:, episode.columns], rows)))
    return episode.lost_seconds - max(longer, 0.0)


def _causes(steps: Steps, episode: Episode) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What may have caused an episode, the surest first, each with a sentence about it."""
    if episode.cause is not None:
        yield episode.cause, ()
    is_inside = np.isin(steps.ranks, episode.ranks)
    retries = np.array([member.allocator_retries for member in steps.members])
    own_retries = int(retries[is_inside].max(initial=0))
    if own_retries > retries[~is_inside].max(initial=0):
        why = f"The GPU's allocator ran out and tried again {plural(own_retries, 'time')}"
        yield "device_memory", (f"{why} there alone.",)
    if episode.phase == "data":
        yield "loader", ("The time went into loading data.",)
    if steps.host_bound is not None and episode.phase_seconds:
        held_up = excess(steps.host_bound[:, episode.columns], np.flatnonzero(is_inside).tolist())
        beyond = float(nan_stats.median(held_up))
        if beyond >= _MIN_EXPLAINED_SHARE * episode.phase_seconds:
            why = f"Its device waited for the host {duration(beyond)} longer in a late step."
            yield "host_bound", (why,)


def judge_recording(recording: Recording, scores: Scores) -> Judgement:
    """The verdict, its episodes and the lost time."""
    steps = recording.steps
    if recording.launches is not None:
        return Judgement(judge_launches(recording.launches))
    if recording.doubts:
        return Judgement(unknown(*recording.doubts))
    if recording.flight_recorder_log is not None:
        return Judgement(judge_hang(recording.flight_recorder_log))
    if recording.collectives is not None:
        return Judgement(_judge_collectives(steps, recording.collectives))
    if not recording.own_times and not steps.is_independent:
        are_few = steps.steps_per_column is not None or steps.round_steps
        return judge(steps, scores, _SHORT_WINDOW_STEPS if are_few else WINDOW_STEPS)
    own_times = not steps.is_independent
    verdict, episodes = judge_own_times(steps) if own_times else judge_independent(steps, scores)
    return Judgement(verdict, episodes, list_episode_losses(steps, scores, episodes))


def _judge_collectives(steps: Steps, log: CollectiveLog) -> Verdict:
    """Judges every collective as a step of its own: the late rank has the shortest one."""
    if len(log.ranks) <= 1:
        return unknown("No collective was recorded by two ranks or more; lateness needs that.")
    samples = timed_steps(
        steps.job_id,
        list(log.ranks),
        np.arange(log.seconds.shape[1]),
        np.where(np.isnan(log.between), log.seconds, log.between),
        sync=log.seconds,
        world_size=steps.world_size,
    )
    members = tuple(member for member in steps.members if member.rank in log.ranks)
    samples = replace(samples, members=members)
    verdict = judge(samples, score(samples), _SHORT_WINDOW_STEPS).verdict
    if verdict.kind == "nobody" and len(steps.missing_ranks) > len(steps.members):
        why = "None of the ranks that were read is slow, but most ranks were not read."
        return unknown(why, *verdict.evidence)
    return verdict


def _explain_by_load(steps: Steps, candidate: Candidate) -> Verdict | None:
    """The workload, when the candidate had so much more to do than the others; else None."""
    columns, rows = candidate.stretch.columns, candidate.rows
    work = np.sum([steps.phases[name][:, columns] for name in ("forward", "backward")], axis=0)
    longer = _ratio(work, rows) - 1
    for cause, load in _loads(steps).items() if longer > 0 else ():
        more = _ratio(load[:, columns], rows) - 1
        if more >= _MIN_EXPLAINED_SHARE * longer:
            unit = "tokens" if cause == "tokens" else "squared sequence lengths"
            sentence = (
                f"rank {list_ranks([steps.ranks[row] for row in rows])} took {percent(longer)} "
                f"longer forward and backward, but had {percent(more)} more {unit} to work on: the "
                "data is uneven."
            )
            return slow_workload(steps, candidate.stretch, cause, sentence)
    return None


def _loads(steps: Steps) -> dict[str, Matrix]:
    """What a recording of the amount of work proves a cause by, by that cause: [ranks, steps]."""
    loads = {"tokens": steps.tokens, "sequence_lengths": steps.sequence_squares}
    return {cause: load for cause, load in loads.items() if load is not None}


def _ratio(values: Matrix, rows: list[int]) -> float:
    """Median of some rows [ranks, steps] over that of the others."""
    usual = nan_stats.median(np.delete(values, rows, axis=0), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = nan_stats.median(values[rows], axis=0) / np.where(usual > 0, usual, np.nan)
    return float(nan_stats.median(ratio))


def _judge_common(steps: Steps, scores: Scores, stretch: Stretch, late: Integers) -> Verdict | None:
    """The workload that was slow in a stretch; None where a busy host explains it.

    On a crowded host caches are shared: there uneven data explains it, or what ranks sleep, and no
    longer time on a core. ``late`` are the columns in which all ranks worked longer.
    """
    sentence = (
        f"at least three ranks in four worked longer than usual in the same {stretch.num_late} of "
        f"{stretch.num_known} steps; no rank is to blame."
    )
    for cause, load in _loads(steps).items():
        usual = float(nan_stats.median(np.delete(load, late, axis=1)))
        if usual > 0 and float(nan_stats.median(load[:, late])) > _MIN_MORE_WORK * usual:
            return slow_workload(steps, stretch, cause, f"{sentence} They had more to work on.")
    slept = scores.account.slept
    if scores.is_crowded and slept is not None:
        work, sleep = (
            float(np.mean(beyond_usual(np.nan_to_num(seconds))[:, late]))
            for seconds in (scores.account.own_work, slept)
        )
        if not sleep >= _MIN_EXPLAINED_SHARE * work:
            return None
    return slow_workload(steps, stretch, None, sentence)
