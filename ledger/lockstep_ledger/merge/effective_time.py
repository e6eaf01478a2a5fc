"""Effective training time of jobs: so far, in the last hour, expected, and the best interval."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from lockstep_ledger.merge.record import Record
from lockstep_outcomes.progress.goodput import (
    PROGRESS_STATES,
    GoodputSample,
    best_interval_seconds,
    expected_ettr,
    failures_per_node_day,
    recent_ettr,
)

_RESTART_STATES = ("recovery", "startup", "restore")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruptions:
    """What one or several jobs measured of failures and checkpoints; times are wall clock.

    Attributes:
        node_seconds: of all nodes together.
        num_failures: attempts that ended before the job did, other than by its owner.
        restart_seconds: from starts to first steps, of all attempts together.
        save_seconds: for which checkpoints stopped the steps, together.
        training_seconds: between checkpoints, together.
    """

    num_nodes: float = 0.0
    node_seconds: float = 0.0
    num_attempts: float = 0.0
    num_failures: float = 0.0
    num_checkpoints: float = 0.0
    restart_seconds: float = 0.0
    save_seconds: float = 0.0
    training_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What the measured failures and checkpoints let a job expect; None is not measured."""

    failures_per_node_day: float | None = None
    interval_seconds: float | None = None
    save_seconds: float | None = None
    restart_seconds: float | None = None
    expected_ettr_ratio: float | None = None
    best_interval_seconds: float | None = None
    best_ettr_ratio: float | None = None


def interruptions_of(record: Record) -> Interruptions:
    """What the record of one job measured; zeros where no GPU time is reported."""
    goodput = record.goodput
    num_nodes = float(record.expected_nodes or record.machines)
    # The record has GPU-seconds; over the GPUs of the whole job they are wall clock.
    gpus = record.gpus or record.machine_gpus
    if not gpus or not num_nodes:
        return Interruptions()
    ended_badly = record.outcome in {"failed", "preempted", "unknown"}
    is_of_cluster = ended_badly and record.failure_class != "user"
    return Interruptions(
        num_nodes=num_nodes,
        node_seconds=math.fsum(goodput.values()) / gpus * num_nodes,
        num_attempts=record.attempts,
        num_failures=max(0, record.attempts - 1) + is_of_cluster,
        num_checkpoints=record.checkpoints,
        restart_seconds=math.fsum(goodput.get(s, 0.0) for s in _RESTART_STATES) / gpus,
        save_seconds=goodput.get("checkpoint", 0.0) / gpus,
        training_seconds=math.fsum(goodput.get(s, 0.0) for s in PROGRESS_STATES) / gpus,
    )


def sum_interruptions(measured: Iterable[Interruptions]) -> Interruptions:
    """Those of several jobs; the number of nodes is the mean, weighted by their time."""
    jobs = [job for job in measured if job.node_seconds > 0]
    seconds = math.fsum(job.node_seconds for job in jobs)
    weighted = math.fsum(job.num_nodes * job.node_seconds for job in jobs)
    names = (field.name for field in fields(Interruptions))
    sums = {name: math.fsum(getattr(job, name) for job in jobs) for name in names}
    return Interruptions(**sums | {"num_nodes": weighted / seconds if seconds else 0.0})


def expectation(measured: Interruptions) -> Expectation:
    """Expected ETTR and the best checkpoint interval (lockstep_outcomes/progress/ettr.py)."""
    rate = failures_per_node_day(measured.num_failures, measured.node_seconds)
    if rate is None or not measured.num_checkpoints or not measured.num_attempts:
        return Expectation(failures_per_node_day=rate)
    interval = measured.training_seconds / measured.num_checkpoints
    save = measured.save_seconds / measured.num_checkpoints
    restart = measured.restart_seconds / measured.num_attempts
    if interval <= 0:
        return Expectation(failures_per_node_day=rate)
    job: dict[str, float] = {
        "num_nodes": measured.num_nodes, "failures_per_node_day": rate, "save_seconds": save,
    }  # fmt: skip
    expected = partial(expected_ettr, **job, restart_seconds=restart)
    best = best_interval_seconds(**job)
    return Expectation(
        failures_per_node_day=rate,
        interval_seconds=interval,
        save_seconds=save,
        restart_seconds=restart,
        expected_ettr_ratio=expected(interval_seconds=interval),
        best_interval_seconds=best,
        best_ettr_ratio=None if best is None else expected(interval_seconds=best),
    )


def last_hour_ettr(timeline: Sequence[Mapping[str, Any]]) -> float | None:
    """ETTR of the hour before the newest report of goodput, by the events of the job.

    Totals are of ranks; shares are the same as of GPUs as long as all nodes have equally many.
    """
    totals: dict[tuple[str, int], tuple[float, float]] = {}
    samples = []
    for event in timeline:
        seconds = event["fields"].get("rank_seconds") if event["kind"] == "goodput" else None
        if not isinstance(seconds, dict):
            continue
        moving = math.fsum(seconds.get(state, 0.0) for state in PROGRESS_STATES)
        totals[event["node"], event["attempt"]] = (moving, math.fsum(seconds.values()))
        productive, allocated = (math.fsum(part) for part in zip(*totals.values(), strict=True))
        samples.append(GoodputSample(event["time"], productive, allocated))
    return recent_ettr(samples)
