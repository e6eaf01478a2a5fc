"""Decides who was slow: a rank, a group, the workload, nobody, or unknown."""

from dataclasses import replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.recording.collectives import CollectiveLog
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.align import Alignment
from lockstep_reports.search.candidates import Candidate, drop_hiccups, find_candidates, place_ends
from lockstep_reports.search.score import Scores, excess, score
from lockstep_reports.search.stretches import WINDOW_STEPS
from lockstep_reports.verdict import evidence
from lockstep_reports.verdict.busy_host import (
    busy_everywhere,
    busy_host_sentence,
    busy_host_verdict,
    host_explains,
    is_crowded,
    is_straggler,
    remove_waits,
    tolerated_loss_seconds,
)
from lockstep_reports.verdict.evidence import episode_of
from lockstep_reports.verdict.hang import judge_hang
from lockstep_reports.verdict.independent import judge_independent
from lockstep_reports.verdict.own_times import judge_own_times
from lockstep_reports.verdict.stopped import remove_stops, stopped_episodes
from lockstep_reports.verdict.verdict import (
    Episode,
    Verdict,
    rank_by_cost,
    saved_by_repair,
    unknown,
)
from lockstep_reports.verdict.workload import explained_by_load, workload
from lockstep_reports.wording import duration, plural

# Share of the costliest episode's loss; an episode that lost less names nobody.
_MIN_SHARE_OF_COSTLIEST = 0.1
_MIN_EXPLAINED_SHARE = 0.5  # of the lost time; less leaves room for another cause of equal size
# A profiler trace holds few collectives, a Prometheus few slots of time, and a job that meets in
# rounds few of them. The bound on false
# alarms holds at any number of steps, so shorter windows only lose sensitivity.
_SHORT_WINDOW_STEPS = 5


def cause_of(steps: Steps, episode: Episode) -> tuple[str | None, tuple[str, ...]]:
    """The cause and a sentence about it; None and no sentence where it is unknown."""
    if episode.stood_still_seconds is not None:
        return "process_stopped", ()
    is_inside = np.isin(steps.ranks, episode.ranks)
    collection, retries = (
        np.array([getattr(member, name) for member in steps.members], np.float64)
        for name in ("collection_seconds", "allocator_retries")
    )
    # Counters cover the whole run, so what all ranks spend on collection is subtracted.
    beyond = float(
        nan_stats.median(collection[is_inside]) - nan_stats.median(collection[~is_inside])
    )
    if episode.lost_seconds > 0 and beyond >= _MIN_EXPLAINED_SHARE * episode.lost_seconds:
        sentence = f"Python collected garbage there for {duration(beyond)} longer than elsewhere."
        return "garbage_collection", (sentence,)
    own_retries = int(retries[is_inside].max(initial=0))
    if own_retries > retries[~is_inside].max(initial=0):
        times = plural(own_retries, "time")
        sentence = f"The GPU's allocator ran out and tried again {times} there alone."
        return "device_memory", (sentence,)
    if episode.phase == "data":
        return "loader", ("The time went into loading data.",)
    if (held_up := _held_up_seconds(steps, episode)) is not None:
        sentence = f"Its device waited for the host {duration(held_up)} longer in a late step."
        return "host_bound", (sentence,)
    return None, ()


def _held_up_seconds(steps: Steps, episode: Episode) -> float | None:
    """By how much longer a step's device waits for the host than others do, if that explains it."""
    if steps.host_bound is None or not episode.phase_seconds:
        return None
    rows = np.flatnonzero(np.isin(steps.ranks, episode.ranks)).tolist()
    beyond = float(nan_stats.median(excess(steps.host_bound[:, episode.columns], rows)))
    return beyond if beyond >= _MIN_EXPLAINED_SHARE * episode.phase_seconds else None


def judge(
    steps: Steps, scores: Scores, window_steps: int = WINDOW_STEPS
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and the episodes it rests on in the order of their beginning."""
    missing = evidence.missing_ranks(steps)
    if why := evidence.why_unknown(steps, 2 * window_steps):
        return unknown(why, *missing), ()
    stopped = stopped_episodes(steps, scores, window_steps)
    # What is left is judged by itself.
    awake = remove_stops(steps, stopped)
    awake_scores = score(awake) if stopped else scores
    episodes, loads, found = _search(awake, awake_scores, window_steps)
    if episodes := episodes + stopped:
        episodes = _share_overlaps(episodes, len(steps.numbers))
        in_order = tuple(sorted(episodes, key=lambda e: (e.start_step, e.ranks)))
        return _verdict(steps, episodes, missing), in_order
    if load := next((load for load in loads if load), None):
        return replace(load, evidence=(*load.evidence, *missing)), ()
    if blind := evidence.why_blind(steps, scores):
        return unknown(*blind), ()
    if load := workload(steps, scores, window_steps):
        return busy_everywhere(steps, load, window_steps) or load, ()
    ranks = [tuple(steps.ranks[row] for row in candidate.rows) for candidate in found]
    lost_seconds = sum(float(candidate.cost.sum()) for candidate in found)
    hiccups = evidence.why_brief(ranks, lost_seconds / float(np.nansum(scores.step_seconds)))
    return Verdict(kind="nobody", evidence=(*evidence.why_nobody(steps, scores), *hiccups)), ()


def _search(
    steps: Steps, scores: Scores, window_steps: int
) -> tuple[list[Episode], list[Verdict | None], list[Candidate]]:
    """Episodes of slow ranks and busy hosts, the loads that explain others, and who was late."""
    found = find_candidates(steps, scores, window_steps)
    candidates = drop_hiccups(steps, scores, found, window_steps)
    loads = [explained_by_load(steps, candidate) for candidate in candidates]
    slow = place_ends(
        [candidate for candidate, load in zip(candidates, loads, strict=True) if load is None],
        len(steps.numbers),
    )
    episodes = [
        replace(episode_of(steps, candidate), busy_host=host_explains(steps, scores, candidate))
        for candidate in slow
    ]
    if all(episode.busy_host for episode in episodes) and is_crowded(steps):
        episodes = _with_slow_without_waits(steps, episodes, window_steps)
    return episodes, loads, found


def _with_slow_without_waits(steps: Steps, busy: list[Episode], window_steps: int) -> list[Episode]:
    """Episodes of busy hosts, and in their place those of ranks that are slow by their own work."""
    unqueued = remove_waits(steps)
    scores = score(unqueued)
    found = find_candidates(unqueued, scores, window_steps)
    candidates = [
        candidate
        for candidate in drop_hiccups(steps, scores, found, window_steps)
        if explained_by_load(unqueued, candidate) is None
        and is_straggler(scores, candidate)
        and candidate.cost.sum() > scores.threshold * len(candidate.cost) / 2
    ]
    # Its phase is that of the steps as they were: nobody knows into which of them a wait fell.
    slow = [
        episode_of(steps, candidate) for candidate in place_ends(candidates, len(steps.numbers))
    ]
    named = {rank for episode in slow for rank in episode.ranks}
    return slow + [episode for episode in busy if not named & {*episode.ranks}]


def _share_overlaps(episodes: list[Episode], num_steps: int) -> list[Episode]:
    """The episodes with losses that are paid once, where several fall into the same step."""
    heights = np.zeros((len(episodes), num_steps))
    for row, episode in enumerate(episodes):
        heights[row, episode.columns] = episode.lost_by_step
    shared = saved_by_repair(heights, np.zeros_like(heights))
    return [
        replace(episode, lost_by_step=shared[row, episode.columns])
        for row, episode in enumerate(episodes)
    ]


def _verdict(steps: Steps, episodes: list[Episode], missing: tuple[str, ...]) -> Verdict:
    # What cost next to nothing compared with the costliest stays an episode: it names nobody,
    # and does not count as a recurrence.
    least = _MIN_SHARE_OF_COSTLIEST * max(episode.lost_seconds for episode in episodes)
    slow = [e for e in episodes if not e.busy_host and e.lost_seconds >= least]
    # Other work takes caches as well as cores, but does not make a process stand still.
    beside_waits = tolerated_loss_seconds(steps)
    slow = [e for e in slow if e.stood_still_seconds or e.lost_seconds >= beside_waits]
    busy = sorted((episode for episode in episodes if episode.busy_host), key=rank_by_cost)
    sentences = tuple(busy_host_sentence(steps, episode) for episode in busy)
    if not slow:
        verdict = busy_host_verdict(steps, sentences)
        return replace(verdict, evidence=(*verdict.evidence, *missing))
    worst = min(slow, key=rank_by_cost)
    same_kind = [e for e in slow if (e.group is None) == (worst.group is None)]
    in_order = sorted(same_kind, key=rank_by_cost)
    ranks = dict.fromkeys(rank for episode in in_order for rank in episode.ranks)
    times = sum(episode.ranks == worst.ranks for episode in same_kind)
    recurrence = (f"It happened {times} times in the recording.",) if times > 1 else ()
    cause, why = cause_of(steps, worst)
    return Verdict(
        kind="rank" if worst.group is None else "group",
        ranks=tuple(ranks),
        group=worst.group,
        phase=worst.phase,
        cause=cause,
        confidence=worst.confidence,
        evidence=(*worst.evidence, *recurrence, *why, *sentences, *missing),
    )


def judge_recording(recording: Recording, scores: Scores) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict and its episodes."""
    if recording.flight_recorder_log is not None:
        return judge_hang(recording.flight_recorder_log), ()
    if recording.own_times:
        return judge_own_times(recording.steps)
    if recording.steps.is_independent:
        return judge_independent(recording.steps, scores)
    if recording.collectives is not None:
        return _judge_collectives(recording.steps, recording.collectives), ()
    are_few = recording.steps.steps_per_column is not None or recording.steps.round_steps
    return judge(recording.steps, scores, _SHORT_WINDOW_STEPS if are_few else WINDOW_STEPS)


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
    verdict = judge(samples, score(samples), _SHORT_WINDOW_STEPS)[0]
    if verdict.kind == "nobody" and len(steps.missing_ranks) > len(steps.members):
        why = "None of the ranks that were read is slow, but most ranks were not read."
        return unknown(why, *verdict.evidence)
    return verdict


def align_by_collectives(alignment: Alignment, log: CollectiveLog | None) -> Alignment:
    """The alignment with the clocks of the collectives, by rank, where there are any."""
    if log is None:
        return alignment
    return replace(
        alignment,
        offsets={f"rank {rank}": seconds for rank, seconds in log.offsets.items()},
        drifts={f"rank {rank}": rate for rank, rate in log.drifts.items()},
        residual_seconds=nan_stats.median_number(log.residual) if log.items else None,
        residual_p95_seconds=nan_stats.quantile_number(log.residual, 0.95) if log.items else None,
    )
