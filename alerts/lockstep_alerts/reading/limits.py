"""The size of the clusters, and the limits by which recorded series, ledger and reports judge."""

import math
from dataclasses import dataclass
from typing import Annotated

from lockstep_alerts.reading.entry import (
    Entry,
    Ratio,
    nearest,
    number,
    read_quantities,
    whole_number,
)
from lockstep_alerts.reading.model import Duration

_MOST = 1e6
_FAILED_WINDOW = Duration("5m")


_PAGING = ("classes_without_pages", "classes_with_pages")


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueWait:
    """The longest wait of jobs up to a size; of all larger jobs without one."""

    up_to_gpus: Annotated[float, number(0, _MOST)] = math.inf
    wait: Annotated[Duration, Entry.duration]


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """From which on several jobs lose to one cause, a page of its own.

    Attributes:
        nodes: that the cause hits at one time; two may be two faults.
        cluster_jobs, cluster_gpus: that lose to it together, GPU-hours in an hour.
        storage_seconds: mean duration of a request to a shared volume that is slow.
    """

    nodes: Annotated[int, whole_number(1, 10_000)] = 3
    cluster_jobs: Annotated[int, whole_number(1, 10_000)] = 2
    cluster_gpus: Annotated[float, number(0, _MOST)] = 8
    job_gpus: Annotated[float, number(0, _MOST)] = 0.5
    storage_seconds: Annotated[float, number(0, 3600)] = 0.25
    failed_window: Annotated[Duration, Entry.duration] = _FAILED_WINDOW


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits that belong to no single alert.

    Attributes:
        preemption_grace: what a preemption may cost beyond an interval of checkpoints.
        checkpoint_blocking, checkpoint_blocking_ratio: how long a checkpoint may stop the steps,
            and for which share of the time between two.
        recovery_point_intervals: intervals of checkpoints after which the newest one is too old.
        min_activity_ratio: mean activity from which on an allocated GPU is used.
        min_sync_ratio: share of the step in synchronisation below which it is not judged.
        min_baseline_slices: evaluations that an hour must hold to be a baseline.
        min_wait_ratio: share of the step that some rank of a healthy group waits at least.
        max_other_ratio: share of the step in no marked phase from which on it may hide a slow rank.
        late_ratio, late_stage_ratio: share of the step from which on a rank or a node is late, or a
            stage compared with itself alone.
        standing, standing_steps: time and mean steps without progress after which a job stands.
        classes_without_pages, classes_with_pages: classes of jobs that never page, and that do at
            any size.
        classes: that limits and objectives may name; any where it is empty.
    """

    queue_wait: tuple[QueueWait, ...]
    preemption_grace: Annotated[Duration, Entry.duration]
    checkpoint_blocking: Annotated[Duration, Entry.duration]
    checkpoint_blocking_ratio: Ratio
    recovery_point_intervals: Annotated[float, number(0, 100)]
    min_activity_ratio: Ratio
    min_sync_ratio: Ratio
    min_baseline_slices: Annotated[int, whole_number(0, 60)]
    min_wait_ratio: Ratio
    max_other_ratio: Ratio
    standing: Annotated[Duration, Entry.duration]
    standing_steps: Annotated[float, number(0, 1000)]
    late_ratio: Ratio = 0.08
    late_stage_ratio: Ratio = 0.25
    page_gpus: Annotated[int, whole_number(0, 1_000_000)] = 8
    classes_without_pages: Annotated[tuple[str, ...], Entry.texts] = ("interactive",)
    classes_with_pages: Annotated[tuple[str, ...], Entry.texts] = ("production",)
    classes: Annotated[tuple[str, ...], Entry.texts] = ()
    losses: Losses = Losses()

    def check_class(self, entry: Entry, field: str, name: str) -> None:
        """Refuses a class of jobs that the spec does not list."""
        if self.classes and name not in self.classes:
            remedy = f"{nearest(name, self.classes)}add it to limits.classes"
            raise entry.refuse(field, f"{name} is not in classes of the spec; {remedy}")


def read_limits(entry: Entry) -> Limits:
    """The limits of a spec; SpecError where a field cannot be meant, or sizes do not rise."""
    waits = tuple(read_quantities(QueueWait, each) for each in entry.entries("queue_wait"))
    sizes = [each.up_to_gpus for each in waits]
    if sizes != sorted(set(sizes)) or sizes[-1] != math.inf:
        raise entry.refuse("queue_wait", "sizes must rise, and the last entry has no up_to_gpus")
    losses = Losses()
    if entry.has("losses"):
        losses = read_quantities(Losses, entry.entry("losses"))
    own = {"queue_wait": waits, "losses": losses}
    limits = read_quantities(Limits, entry, ("queue_wait",), ("losses",), **own)
    if both := set(limits.classes_with_pages) & set(limits.classes_without_pages):
        field = next(name for name in _PAGING if entry.has(name))
        raise entry.refuse(field, f"{min(both)} is in {' and in '.join(_PAGING)}; keep it in one")
    for field in filter(entry.has, _PAGING):
        for name in entry.texts(field):
            limits.check_class(entry, field, name)
    return limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """What the cost of rules and the rate of false pages are estimated for.

    Attributes:
        nodes, ranks: of all ``jobs`` that run at the same time.
        location: file and line, for a refusal.
    """

    nodes: Annotated[int, whole_number(0, _MOST)]
    ranks: Annotated[int, whole_number(0, _MOST)]
    jobs: Annotated[int, whole_number(0, _MOST)]
    jobs_per_week: Annotated[float, number(0, _MOST)]
    location: str


def read_size(entry: Entry) -> Size:
    """The size of a spec; SpecError where a field is missing, unknown or not above 0."""
    return read_quantities(Size, entry, location=entry.location().rpartition(": ")[0])
