"""The independent model: expected records, counters and window rows of a set of events.

It knows the contract and nothing of the ledger's code: it sorts, sweeps and sums all events anew.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .arrivals import Arrival, facts_of
from .job_history import JobHistory, Settings, Settlement
from .joins import jobs_of
from .tallies import (
    attempt_starts,
    checkpoints,
    cost_of,
    ended_at,
    lost_gpu_seconds,
    met_deadline,
    outcome_of,
    requeue_causes,
    restores,
    states_of,
)
from .verdicts import silent_nodes
from .windows import Row, rows_of
from .words import COMPARED

CounterKey = tuple[str, tuple[tuple[str, str], ...]]
"""Family without prefix and suffix, and its labels by name, sorted."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a ledger has to hold; what a counter can no longer give back is in ``amended``."""

    records: Mapping[tuple[str, str], Mapping[str, Any]]
    counters: Mapping[CounterKey, float]
    rows: Sequence[Row]


def expect(
    arrivals: Iterable[Arrival],
    settings: Settings,
    now: float,
    settlements: Sequence[Settlement] = (),
) -> Expected:
    """What a ledger has to hold that received these events, in any order, and has just settled."""
    jobs = histories_of(arrivals, settings, now, settlements)
    counters: dict[CounterKey, float] = defaultdict(float)
    for job in jobs:
        for key, value in contributions(job).items():
            counters[key] += value
    rows = sorted(row for job in jobs for row in rows_of(job))
    records = {(job.joined.cluster, job.joined.job_id): record_of(job) for job in jobs}
    return Expected(records=records, counters=dict(counters), rows=rows)


def histories_of(
    arrivals: Iterable[Arrival],
    settings: Settings,
    now: float,
    settlements: Sequence[Settlement] = (),
) -> list[JobHistory]:
    return [
        JobHistory(
            joined=joined,
            settings=settings,
            now=now,
            settlements=[each for each in settlements if each.job_id in joined.ids],
        )
        for joined in jobs_of(facts_of(arrivals))
    ]


def settlements_of(jobs: Sequence[JobHistory]) -> list[Settlement]:
    """What the ledger writes down as it settles at the moment of these histories."""
    return [
        Settlement(job_id=job.joined.job_id, run_begin=job.runs[-1].begin, time=job.now)
        for job in jobs
        if job.runs and job.is_finished and not job.is_complete
    ]


def record_of(job: JobHistory) -> dict[str, Any]:
    outcome, failure_class, cause = outcome_of(job)
    currency, amount = cost_of(job)
    started = job.started_runs
    is_settled = job.is_finished and bool(job.runs)
    lost = sum(
        lost_gpu_seconds(job, run)
        for run, preempted, failed in zip(job.runs, job.is_preempted, job.has_failed, strict=True)
        if preempted or failed
    )
    words = (*COMPARED, "deadline_time")
    return {
        "job_id": job.joined.job_id,
        "ids": sorted(job.joined.ids),
        "status": job.status,
        "outcome": outcome,
        "failure_class": failure_class,
        "cause": cause,
        "submitted": job.words.submitted,
        "started": min((run.begin for run in started), default=None),
        "ended": ended_at(job),
        "queue_wait_seconds": job.words.queue_wait(job.runs),
        "attempts": sum(len(attempt_starts(run)) for run in started),
        "requeues": requeue_causes(job),
        "preemptions": sum(job.is_preempted),
        "lost_gpu_seconds": lost,
        "restores": dict(restores(job)),
        "checkpoints": dict(checkpoints(job)),
        "gpu_seconds": sum(time.total for time in job.gpu_times),
        "states": states_of(job),
        "cost": {currency: amount} if amount else {},
        "silent_nodes": _silent_names(job) if is_settled else [],
        "disagreements": sorted(map(list, _disagreements(job)), key=str),
        "runs": [_run_record(job, index) for index in range(len(job.runs))],
        **{name: job.words.value(name) for name in words},
    }


def contributions(job: JobHistory) -> dict[CounterKey, float]:
    outcome, failure_class, _ = outcome_of(job)
    counts: list[tuple[str, dict[str, str], float]] = [
        ("gpu_seconds", {"goodput": state}, seconds)
        for time in job.gpu_times
        for state, seconds in time.counted.items()
    ]
    if outcome is not None:
        ending = {"job_outcome": outcome, "failure_class": failure_class or "none"}
        total = sum(time.total for time in job.gpu_times)
        counts += [("jobs_finished", ending, 1), ("jobs_finished_gpu_seconds", ending, total)]
        if job.started_runs:
            counts.append(("job_duration_seconds_count", {}, 1))
    if job.started_runs:
        attempts = sum(len(attempt_starts(run)) for run in job.started_runs)
        counts += [("jobs_started", {}, 1), ("attempts_started", {}, attempts)]
    if job.words.queue_wait(job.runs) is not None:
        counts.append(("job_queue_wait_seconds_count", {}, 1))
    deadline = met_deadline(job)
    if deadline is not None:
        counts.append(("job_deadlines", {"deadline": "met" if deadline else "missed"}, 1))
    counts += [("requeues", {"requeued_after": cause}, 1) for cause in requeue_causes(job)]
    counts += [("resumes", {"restore": name}, number) for name, number in restores(job).items()]
    counts += [
        ("checkpoints", {"outcome": name}, number) for name, number in checkpoints(job).items()
    ]
    for run, preempted in zip(job.runs, job.is_preempted, strict=True):
        if preempted:
            counts.append(("preemptions", {}, 1))
            counts.append(("preemption_lost_gpu_seconds", {}, lost_gpu_seconds(job, run)))
    currency, amount = cost_of(job)
    counts.append(("cost", {"currency": currency}, amount))
    return _by_key(job, counts)


def _by_key(
    job: JobHistory, counts: Sequence[tuple[str, dict[str, str], float]]
) -> dict[CounterKey, float]:
    group = {name: job.words.value(name) or "" for name in ("queue", "project", "job_class")}
    found: dict[CounterKey, float] = defaultdict(float)
    for family, labels, value in counts:
        if value:
            every = {"cluster": job.joined.cluster, **group, **labels}
            found[family, tuple(sorted(every.items()))] += value
    return found


def _silent_names(job: JobHistory) -> list[str]:
    """Nodes of the newest run without an end; those that nobody heard of are numbered."""
    run = job.runs[-1]
    missing = (job.num_nodes(run) or 0) - len(run.last_spans) if run.spans else 0
    return [*silent_nodes(run), *(f"unseen {number + 1}" for number in range(missing))]


def _disagreements(job: JobHistory) -> set[tuple[str, str, Any]]:
    lost = {(each.lost[0], "outcome", each.lost[1]) for each in job.verdicts if each.lost}
    ends = [run.scheduler.end_fact for run in job.runs if run.scheduler is not None]
    statuses = {
        ("scheduler", "exit_code", int(end.number("exit_code") or 0))
        for end in ends
        if end is not None and end.text("outcome") == "succeeded" and end.number("exit_code")
    }
    more = {("launcher", "gpus", gpus) for time in job.gpu_times for gpus in time.not_granted}
    inverted = {
        ("launcher", "ended", span.end_fact.time)
        for run in job.runs
        for span in run.spans
        if span.end_fact and span.end and span.end_fact.time < span.end
    }
    return job.words.disagreements() | lost | statuses | more | inverted


def _run_record(job: JobHistory, index: int) -> dict[str, Any]:
    run, verdict = job.runs[index], job.verdicts[index].verdict
    is_over = index < len(job.runs) - 1 or job.is_last_run_over
    return {
        "begin": run.begin,
        "end": run.end if is_over else None,
        "has_start": run.has_start,
        "nodes": [span.node for span in run.last_spans],
        "outcome": verdict.outcome if is_over else None,
        "gpu_seconds": job.gpu_times[index].total,
    }
