"""Additions of a job to counters and windows: functions of its record, and of what counts once."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lockstep_catalogue import Metric, limits
from lockstep_catalogue import ledger as counted
from lockstep_catalogue.ledger import AMENDED
from lockstep_catalogue.vocabulary import SYNTHETIC_CLASS
from lockstep_ledger.merge.record import Record
from lockstep_ledger.merge.spans import WindowRow
from lockstep_records.events.event import Event

Checkpoints = Callable[[float], tuple[int, float, float]]
Counts = dict[tuple[str, ...], float]
"""Amount by name of the counter and label values behind those of the group."""
_RESTORES = {
    "resumed": (counted.RESUMES, "ok"),
    "fallback": (counted.RESUMES, "fallback"),
    "restore_failed": (counted.RESUMES, "failed"),
}
_MIN_CHECKPOINTS = 2
_EXACT = 2.0**20
"""Parts of a second in which windows count: what is taken back leaves nothing of a rounding."""


class Booked(msgspec.Struct, omit_defaults=True):
    """What counters and windows hold of a job, and which histograms have its one observation."""

    group: tuple[str, str, str, str] = ("", "", "", "")
    counts: list[tuple[tuple[str, ...], float]] = []
    rows: list[WindowRow] = []
    observed: list[str] = []


def counts_of(record: Record) -> Counts:
    """What a job adds to every counter."""
    found: Counts = {}

    def add(metric: Metric, amount: float, *labels: str) -> None:
        if amount:
            found[metric.name, *labels] = found.get((metric.name, *labels), 0.0) + amount

    for currency, amount in record.costs.items():
        add(counted.COST, amount, currency)
    add(counted.JOBS_STARTED, float(record.started is not None))
    add(counted.ATTEMPTS_STARTED, record.attempts)
    add(counted.PREEMPTIONS, record.preemptions)
    lost = sum(run.lost_gpu_seconds for run in record.runs if run.is_preempted)
    add(counted.PREEMPTION_LOST, lost)
    for run in record.runs:
        for state, seconds in run.explained_states.items():
            add(counted.GPU_SECONDS, seconds, state)
        if run.requeued_after:
            add(counted.REQUEUES, 1.0, run.requeued_after)
    for name, number in record.checkpoint_counts.items():
        metric, label = _RESTORES.get(name, (counted.CHECKPOINTS, name))
        add(metric, number, label)
    if record.outcome is not None:
        labels = (record.outcome, record.failure_class or "none")
        add(counted.JOBS_FINISHED, 1.0, *labels)
        add(counted.JOBS_FINISHED_GPU_SECONDS, record.gpu_seconds, *labels)
    met = met_deadline(record)
    if met is not None:
        add(counted.DEADLINES, 1.0, "met" if met else "missed")
    return found


def observations_of(record: Record) -> dict[Metric, float]:
    """What a job adds to histograms, once."""
    found = {}
    if record.queue_wait_seconds is not None:
        found[counted.QUEUE_WAIT] = record.queue_wait_seconds
    if record.ended is not None and record.started is not None:
        found[counted.JOB_DURATION] = max(0.0, record.ended - record.started)
    return found


def rows_of(record: Record, checkpoints: Checkpoints) -> list[WindowRow]:
    """What a job counts for the objectives of its starts, preemptions and end."""
    return [
        row
        for row in (
            *_start_rows(record),
            *_preemption_rows(record, checkpoints),
            *_end_rows(record),
        )
        if row.total
    ]


def _start_rows(record: Record) -> Iterator[WindowRow]:
    size = record.world_size if record.gpus is None else record.gpus
    wait, started = record.queue_wait_seconds, record.started
    if wait is not None and started is not None and size is not None:
        target = next(seconds for most, seconds in limits.QUEUE_WAIT_TARGETS if size <= most)
        yield WindowRow(started, "queue_wait", float(wait <= target), 1.0)
    for run in record.runs:
        for number, time in enumerate(run.attempts):
            is_good = number > 0 or run.requeued_after in {"", "user"}
            yield WindowRow(time, "requeue", float(is_good), 1.0)


def _preemption_rows(record: Record, checkpoints: Checkpoints) -> Iterator[WindowRow]:
    """A preemption may cost an interval of checkpoints and ten minutes."""
    for run in record.runs:
        gpus = run.gpus
        number, first, last = checkpoints(run.end_time) if run.is_preempted else (0, 0.0, 0.0)
        if number < _MIN_CHECKPOINTS:
            continue
        interval_seconds = (last - first) / (number - 1)
        most = (interval_seconds + limits.PREEMPTION_GRACE_SECONDS) * gpus
        is_good = run.lost_gpu_seconds <= most
        yield WindowRow(run.end_time, "preemption_loss", float(is_good), 1.0)


def _end_rows(record: Record) -> Iterator[WindowRow]:
    end = record.ended
    if end is None:
        return
    # Cancelled jobs and those that their owners broke say nothing of the cluster.
    if record.outcome != "cancelled" and record.failure_class != "user":
        good, gpu_seconds = float(record.outcome == "succeeded"), record.gpu_seconds
        yield WindowRow(end, "job_success", good, 1.0)
        yield WindowRow(end, "job_success_gpu_seconds", good * gpu_seconds, gpu_seconds)
    met = met_deadline(record)
    if met is not None:
        yield WindowRow(end, "time_to_complete", float(met), 1.0)


def met_deadline(record: Record) -> bool | None:
    """Whether it succeeded in time; None without a deadline or an end."""
    if record.deadline is None or record.ended is None or record.outcome == "cancelled":
        return None
    return record.outcome == "succeeded" and record.ended <= record.deadline


Labels = tuple[str, ...]


@dataclass(slots=True)
class Effects:
    """Collected while jobs are derived; ``marks`` are rows to be written."""

    groups: dict[Labels, None] = field(default_factory=dict)
    increments: list[tuple[str, Labels, float]] = field(default_factory=list)
    observations: list[tuple[Metric, Labels, float]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    _slo: dict[tuple[float, str, str, str], tuple[float, float]] = field(default_factory=dict)

    def declare(self, group: Labels) -> None:
        """Names a group of jobs, of which every combination of labels shall be there at 0."""
        self.groups[group] = None

    def add(self, name: str, labels: Labels, amount: float) -> None:
        """Adds to a counter."""
        self.increments.append((name, labels, amount))

    def amend(self, name: str, group: Labels, amount: float) -> None:
        """Notes what a counter of a group holds too much."""
        self.add(AMENDED.name, (*group, name), amount)

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Adds a value to a histogram."""
        self.observations.append((metric, labels, value))

    def count(self, group: Labels, rows: Iterable[WindowRow], sign: int = 1) -> None:
        """Adds to the counts of objectives, or takes back; those of one moment are one row."""
        if group[-1] == SYNTHETIC_CLASS:
            return  # nobody was promised anything of it
        for time, slo, good, total in rows:
            key = (time, group[0], group[-1], slo)
            good_before, total_before = self._slo.get(key, (0.0, 0.0))
            self._slo[key] = (
                good_before + sign * _exact(good),
                total_before + sign * _exact(total),
            )

    @property
    def slo_rows(self) -> list[tuple[str, str, WindowRow]]:
        """Cluster, class of jobs and count of each objective at each time."""
        return [
            (cluster, job_class, WindowRow(time, slo, *counts))
            for (time, cluster, job_class, slo), counts in self._slo.items()
            if any(counts)
        ]


def _exact(seconds: float) -> float:
    return round(seconds * _EXACT) / _EXACT


Mark = tuple[str, int, int]
"""What it is, its attempt, and its step or total."""
_FAILURES = {
    "failed": "checkpoint_success",
    "invalid": "checkpoint_success",
    "restore_failed": "resume_success",
}


def mark_of(event: Event) -> Mark | None:
    """What an event reports; None where it counts nothing."""
    number = event.count("step" if event.kind in _STEP_KINDS else "total")
    if event.kind == "checkpoint_durable":
        return "checkpoint", event.attempt, -1 if number is None else number
    if event.kind == "job_resumed" and number:
        return "resumed", event.attempt, int(event.fields.get("fallback") is True)
    if event.kind == "checkpoint_failed" and number:
        return event.text("outcome") or "failed", event.attempt, number
    return (
        (event.kind, event.attempt, number) if event.kind == "restore_failed" and number else None
    )


def group_of(counted: Mark) -> Mark:
    """Marks of one group count together; each checkpoint counts by itself."""
    return counted if counted[0] == "checkpoint" else (*counted[:2], 0)


def tally(group: Mark, times: Mapping[int, float]) -> tuple[dict[str, int], list[WindowRow]]:
    """What a group of marks counts, and when, by the earliest report of each number."""
    if not times:
        return {}, []
    what, first = group[0], min(times.values())
    if what == "checkpoint":
        return {"ok": 1}, [WindowRow(first, "checkpoint_success", 1.0, 1.0)]
    if what == "resumed":
        is_fallback = 1 in times
        name = "fallback" if is_fallback else "resumed"
        return {name: 1}, [WindowRow(first, "resume_success", float(not is_fallback), 1.0)]
    rows, highest = [], 0
    for number, time in sorted(times.items(), key=lambda entry: (entry[1], entry[0])):
        if number > highest:
            rows.append(WindowRow(time, _FAILURES[what], 0.0, float(number - highest)))
            highest = number
    return {what: highest}, rows


_STEP_KINDS = frozenset({"checkpoint_durable", "job_resumed"})
