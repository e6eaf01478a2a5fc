"""Rows of the windows: what counts for each objective, and when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_catalogue.limits import PREEMPTION_GRACE_SECONDS, QUEUE_WAIT_TARGETS

from .gpu_time import gpus_by, held_by, recoveries, scaled_reports
from .job_history import JobHistory
from .runs import Span
from .tallies import (
    attempt_starts,
    checkpoints_until,
    durable_checkpoints,
    ended_at,
    growths,
    lost_gpu_seconds,
    met_deadline,
    outcome_of,
    requeue_causes,
    resumed_attempts,
)

_MOVING = (
    "productive", "data_wait", "communication", "straggler_wait", "host_bound", "evaluation",
    "other",
)  # fmt: skip
_CLAIM_RATIO, _CLAIM_SECONDS = 1.1, 120.0
"""What reports of a node may claim beyond its time, and of before where it was quiet."""


@dataclass(frozen=True, order=True, slots=True)
class Row:
    """Something that counts for an objective at a moment."""

    time: float
    cluster: str
    job_class: str
    slo: str
    good: float
    total: float


WindowKey = tuple[str, str, str, str]
"""Cluster, class, objective, window."""


def sum_windows(rows: Sequence[Row], now: float) -> dict[WindowKey, tuple[float, float]]:
    """Good and total of each window up to a moment, where there is any."""
    sums: dict[WindowKey, tuple[float, float]] = {}
    for window, seconds in SLO_WINDOWS.items():
        for row in rows:
            if now - seconds < row.time <= now:
                key = (row.cluster, row.job_class, row.slo, window)
                good, total = sums.get(key, (0.0, 0.0))
                sums[key] = (good + row.good, total + row.total)
    return sums


def rows_of(job: JobHistory) -> list[Row]:
    found = [
        *_end_rows(job), *_start_rows(job), *_checkpoint_rows(job), *_resume_rows(job),
        *_preemption_rows(job), *_goodput_rows(job),
    ]  # fmt: skip
    job_class = job.words.value("job_class") or ""
    return [
        Row(time, job.joined.cluster, job_class, slo, good, total)
        for time, slo, good, total in found
        if total
    ]


_Found = Iterator[tuple[float, str, float, float]]


def _end_rows(job: JobHistory) -> _Found:
    end = ended_at(job)
    if end is None:
        return
    outcome, failure_class, _ = outcome_of(job)
    if outcome != "cancelled" and failure_class != "user":
        good = float(outcome == "succeeded")
        gpu_seconds = sum(time.total for time in job.gpu_times)
        yield end, "job_success", good, 1.0
        yield end, "job_success_gpu_seconds", good * gpu_seconds, gpu_seconds
    is_met = met_deadline(job)
    if is_met is not None:
        yield end, "time_to_complete", float(is_met), 1.0


def _start_rows(job: JobHistory) -> _Found:
    wait, gpus = job.words.queue_wait(job.runs), job.words.value("num_gpus")
    gpus = job.words.value("world_size") if gpus is None else gpus
    runs = job.started_runs
    if wait is not None and gpus is not None and runs:
        target = next(seconds for most, seconds in QUEUE_WAIT_TARGETS if gpus <= most)
        yield runs[0].begin, "queue_wait", float(wait <= target), 1.0
    causes = ["user", *requeue_causes(job)]  # a first start is nobody's requeue
    for run, cause in zip(runs, causes, strict=False):
        first, *others = attempt_starts(run)
        yield first, "requeue", float(cause == "user"), 1.0
        for time in others:
            yield time, "requeue", 1.0, 1.0


def _checkpoint_rows(job: JobHistory) -> _Found:
    for fact in durable_checkpoints(job).values():
        yield fact.time, "checkpoint_success", 1.0, 1.0
    for fact, _, number in growths(job.facts, "checkpoint_failed"):
        yield fact.time, "checkpoint_success", 0.0, float(number)


def _resume_rows(job: JobHistory) -> _Found:
    for fact, fell_back in resumed_attempts(job).values():
        yield fact.time, "resume_success", float(not fell_back), 1.0
    for fact, _, number in growths(job.facts, "restore_failed"):
        yield fact.time, "resume_success", 0.0, float(number)


def _preemption_rows(job: JobHistory) -> _Found:
    for run, preempted in zip(job.runs, job.is_preempted, strict=True):
        times = checkpoints_until(job, run.end)
        if preempted and len(times) > 1:
            interval = (max(times) - min(times)) / (len(times) - 1)
            allowed = (interval + PREEMPTION_GRACE_SECONDS) * job.time_of(run).gpus
            yield run.end, "preemption_loss", float(lost_gpu_seconds(job, run) <= allowed), 1.0


def _goodput_rows(job: JobHistory) -> _Found:
    for run in job.runs:
        for span in run.spans:
            for time, state, seconds in _span_growths(job, span):
                if state != "unknown":
                    yield time, "goodput", seconds * (state == "productive"), seconds
                    yield time, "ettr", seconds * (state in _MOVING), seconds


def _span_growths(job: JobHistory, span: Span) -> Iterator[tuple[float, str, float]]:
    highest: dict[tuple[int, str], float] = {}
    counted = 0.0
    for fact, seconds in scaled_reports(span, job.words):
        growths_by_state = {}
        for state, value in seconds.items():
            key = (fact.attempt, state)
            growths_by_state[state] = max(0.0, value - highest.get(key, 0.0))
            highest[key] = max(value, highest.get(key, 0.0))
        total = sum(growths_by_state.values())
        early = min(_CLAIM_SECONDS, span.quiet_seconds)
        gpus = gpus_by(span, fact, job.words)
        most = held_by(span, fact, job.words) * _CLAIM_RATIO + early * gpus - counted
        share = min(1.0, max(0.0, most) / total) if total else 0.0
        counted += total * share
        for state, growth in growths_by_state.items():
            yield fact.time, state, growth * share
    for end, lost in recoveries(span, job.words):
        yield end, "recovery", lost
