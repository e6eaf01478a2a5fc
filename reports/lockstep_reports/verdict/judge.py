"""Decides who was slow: a rank, a group, the workload, nobody, or unknown."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.collectives import CollectiveLog
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.candidates import Candidate, Found, common_work, place_ends, search
from lockstep_reports.search.late import WINDOW_STEPS, Stretch
from lockstep_reports.search.score import Scores, beyond_usual, excess, score
from lockstep_reports.verdict import evidence
from lockstep_reports.verdict.evidence import episode_of, held_episodes
from lockstep_reports.verdict.hang import judge_hang
from lockstep_reports.verdict.independent import judge_independent
from lockstep_reports.verdict.losses import (
    Loss,
    charge,
    list_episode_losses,
    list_losses,
    with_costs,
)
from lockstep_reports.verdict.own_times import judge_own_times
from lockstep_reports.verdict.owners import judge_losses
from lockstep_reports.verdict.verdict import (
    MAX_CONFIDENCE,
    MIN_SHARE,
    Episode,
    Verdict,
    rank_by_cost,
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


class Judgement(NamedTuple):
    """The verdict, the episodes that it rests on, and the lost time by its owners."""

    verdict: Verdict
    episodes: tuple[Episode, ...] = ()
    losses: tuple[Loss, ...] = ()


def judge(steps: Steps, scores: Scores, window_steps: int = WINDOW_STEPS) -> Judgement:
    """The verdict, and the episodes in the order of their beginning."""
    missing = evidence.missing_ranks(steps)
    if why := evidence.why_unknown(steps, scores, 2 * window_steps):
        return Judgement(unknown(why, *missing))
    found = search(steps, scores, window_steps)
    loads = [explained_by_load(steps, candidate) for candidate in found.candidates]
    slow = [late for late, load in zip(found.candidates, loads, strict=True) if load is None]
    own = [episode_of(steps, scores, each) for each in place_ends(slow, len(steps.numbers))]
    first_charges = charge(steps, scores, own)
    held = held_episodes(steps, scores, first_charges, window_steps)
    in_order = sorted([*own, *held], key=lambda e: (e.start_step, e.ranks))
    charges = charge(steps, scores, in_order)
    episodes = with_costs(in_order, charges, steps.ranks)
    losses = list_losses(steps, scores, charges, episodes)
    least = MIN_SHARE * float(np.nansum(steps.sum_over_columns(scores.step_seconds)))
    late_seconds = sum(episode.lost_seconds for episode in episodes)
    verdict = None
    if late_seconds >= least:
        verdict = _name_slow(steps, episodes, losses, scores.tolerated_loss_seconds)
    if verdict is None:
        load = next(filter(None, loads), None)
        verdict = _name_nobody(steps, scores, (found, late_seconds), load)
    verdict = judge_losses(steps, scores, verdict, losses)
    return Judgement(replace(verdict, evidence=(*verdict.evidence, *missing)), episodes, losses)


def _name_nobody(
    steps: Steps, scores: Scores, late: tuple[Found, float], load: Verdict | None
) -> Verdict:
    """The verdict without a slow rank: the workload, nobody, or unknown."""
    found, late_seconds = late
    if load is not None:
        return load
    if blind := evidence.why_blind(steps, scores):
        return unknown(*blind)
    if found.common and (slow := slow_workload(steps, scores, found.common[0])):
        return slow
    lost_seconds = sum(float(candidate.cost.sum()) for candidate in found.brief)
    ranks = [tuple(steps.ranks[row] for row in candidate.rows) for candidate in found.brief]
    hiccups = evidence.why_brief(ranks, lost_seconds / float(np.nansum(scores.step_seconds)))
    return Verdict(
        kind="nobody", evidence=(*evidence.why_nobody(steps, scores, late_seconds), *hiccups)
    )


def _name_slow(
    steps: Steps, episodes: Sequence[Episode], losses: Sequence[Loss], beside_waits: float
) -> Verdict | None:
    # What cost next to nothing compared with the costliest stays an episode: it names nobody,
    # and does not count as a recurrence. Other work takes caches as well as cores.
    of_host = [loss.lost_seconds for loss in losses if loss.kind == "busy_host"]
    costliest = max([*(e.lost_seconds for e in episodes), *of_host], default=0.0)
    least = _MIN_SHARE_OF_COSTLIEST * costliest
    slow = [e for e in episodes if e.lost_seconds >= max(least, 0.0 if e.cause else beside_waits)]
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
    rows = [steps.ranks.index(rank) for rank in log.ranks]
    nothing = np.full(log.seconds.shape, np.nan)
    samples = replace(
        steps,
        members=tuple(steps.members[row] for row in rows),
        numbers=np.arange(log.seconds.shape[1]),
        seconds=np.where(np.isnan(log.between), log.seconds, log.between),
        phases={name: np.zeros_like(nothing) for name in steps.phases} | {"sync": log.seconds},
        start=nothing,
        first_arrival=nothing,
        last_arrival=nothing,
        loss=nothing,
    )
    if len(log.ranks) <= 1:
        return unknown("No collective was recorded by two ranks or more; lateness needs that.")
    verdict = judge(samples, score(samples), _SHORT_WINDOW_STEPS).verdict
    if verdict.kind == "nobody" and len(steps.missing_ranks) > len(steps.members):
        why = "None of the ranks that were read is slow, but most ranks were not read."
        return unknown(why, *verdict.evidence)
    return verdict


LOADS = "tokens", "sequence_lengths"
"""Causes that a recording of the amount of work proves."""
# How much more work than usual all ranks must have in slow steps to explain these by it.
_MIN_MORE_WORK = 1.05


def explained_by_load(steps: Steps, candidate: Candidate) -> Verdict | None:
    """The workload, when the candidate had so much more to do than the others; else None."""
    columns = candidate.stretch.columns
    rows = list(candidate.rows)
    work = np.sum([steps.phases[name][:, columns] for name in ("forward", "backward")], axis=0)
    longer = _ratio(work, rows) - 1
    for cause, load in _loads(steps).items():
        if not longer > 0:
            continue
        more = _ratio(load[:, columns], rows) - 1
        if more >= _MIN_EXPLAINED_SHARE * longer:
            unit = "tokens" if cause == "tokens" else "squared sequence lengths"
            ranks = list_ranks([steps.ranks[row] for row in rows])
            sentence = (
                f"Rank {ranks} took {percent(longer)} longer forward and backward, but had "
                f"{percent(more)} more {unit} to work on: the data is uneven."
            )
            return _workload(steps, candidate.stretch, cause, sentence)
    return None


def _loads(steps: Steps) -> dict[str, Matrix]:
    """What the recording knows of the amount of work [ranks, steps], by cause."""
    loads = zip(LOADS, (steps.tokens, steps.sequence_squares), strict=True)
    return {cause: load for cause, load in loads if load is not None}


def _ratio(values: Matrix, rows: list[int]) -> float:
    """Median over the steps of some rows' median to the others' median, from [ranks, steps]."""
    usual = nan_stats.median(np.delete(values, rows, axis=0), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = nan_stats.median(values[rows], axis=0) / np.where(usual > 0, usual, np.nan)
    return float(nan_stats.median(ratio))


def slow_workload(steps: Steps, scores: Scores, stretch: Stretch) -> Verdict | None:
    """The workload that was slow in a stretch; None where a busy host explains it.

    It does where waits for a core are half of it. On a crowded host caches are shared too: there
    uneven data explains it, or what ranks sleep, and no longer time on a core.
    """
    beyond = beyond_usual(scores.own_work)
    common = common_work(beyond)
    cause, sentence = _why_common(steps, common, stretch)
    late = stretch.first + np.flatnonzero(common[0, stretch.columns] > stretch.threshold)
    worked = float(np.nanmean(beyond[:, late]))
    if not scores.is_crowded:
        return _workload(steps, stretch, cause, sentence)
    if _beyond(scores.account.queued, late) >= _MIN_EXPLAINED_SHARE * worked:
        return None
    is_hosts = cause is None and scores.account.slept is not None
    if is_hosts and not _beyond(scores.account.slept, late) >= _MIN_EXPLAINED_SHARE * worked:
        return None
    return _workload(steps, stretch, cause, sentence)


def _beyond(seconds: Matrix | None, late: Integers) -> float:
    """What ranks have beyond their usual in late columns: mean seconds, of [ranks, steps]."""
    if seconds is None:
        return 0.0
    return float(np.mean(beyond_usual(np.nan_to_num(seconds))[:, late]))


def _why_common(steps: Steps, common: Matrix, stretch: Stretch) -> tuple[str | None, str]:
    """Cause and sentence for steps in which all ranks worked longer [1, steps]."""
    late = common[0, stretch.columns] > stretch.threshold
    sentence = (
        f"At least three ranks in four worked longer than usual in the same {stretch.num_late} of "
        f"{stretch.num_known} steps; no rank is to blame."
    )
    columns = np.arange(stretch.first, stretch.last + 1)[late]
    for cause, load in _loads(steps).items():
        usual = float(nan_stats.median(np.delete(load, columns, axis=1)))
        if usual > 0 and float(nan_stats.median(load[:, columns])) > _MIN_MORE_WORK * usual:
            return cause, f"{sentence} They had more to work on."
    return None, sentence


def _workload(steps: Steps, stretch: Stretch, cause: str | None, sentence: str) -> Verdict:
    start, end = int(steps.numbers[stretch.first]), int(steps.numbers[stretch.last])
    return Verdict(
        kind="workload",
        cause=cause,
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(f"From step {start} to {end}: {sentence[0].lower()}{sentence[1:]}",),
    )
