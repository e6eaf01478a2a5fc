"""The model says of many histories what truly happened, where the events suffice."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from .deliveries import MODES, arrivals_of, deliver, last_moment
from .histories import make_history, make_two_slurms
from .job_history import Settings
from .ledger_model import Expected, expect
from .truth import History, TrueJob, TrueRun, known_ending
from .words import COMPARED

_EDGE_SECONDS = 16.0
"""Nodes begin 4 s after their allocation and end 10 s before at most; Slurm cuts off seconds."""

Mismatch = tuple[str, object, object]
"""Field, truth, record."""


def compare_to_truth(job: TrueJob, record: Mapping[str, Any]) -> list[Mismatch]:
    """Where a settled record says something else than what its events suffice to know."""
    pairs = [*_counts(job), *_ending(job)]
    checkpoints, restores = record["checkpoints"], record["restores"]
    flat = {
        **record,
        "num_runs": sum(run["has_start"] for run in record["runs"]),
        "durable_checkpoints": checkpoints["ok"],
        "resumed_attempts": restores["ok"] + restores["fallback"],
    }
    found = [(name, truth, flat[name]) for name, truth in pairs if flat[name] != truth]
    return found + list(_gpu_seconds(job, record))


def _counts(job: TrueJob) -> Iterator[tuple[str, object]]:
    runs = job.runs
    yield "attempts", sum(len(run.attempts) if job.has_launcher else 1 for run in runs)
    yield "num_runs", len(runs)
    yield "durable_checkpoints", job.checkpoints
    yield "resumed_attempts", job.resumes
    yield "preemptions", sum(run.ending == "preempted" for run in runs)
    yield "requeues", [_requeue_cause(job, run) for run in runs[:-1]]
    yield "submitted", _stated(job, job.submitted) if job.scheduler else None
    if job.scheduler and runs:
        wait = _stated(job, runs[0].begin) - _stated(job, job.submitted)
        yield "queue_wait_seconds", wait
    for name, value in job.words.items():
        if (
            name in COMPARED
            and job.scheduler is not None
            and (name != "num_gpus" or job.states_gpus)
        ):
            yield name, value


def _stated(job: TrueJob, time: float) -> float:
    """A time as the scheduler states it."""
    return float(int(time)) if job.scheduler == "slurm" else time


def _ending(job: TrueJob) -> Iterator[tuple[str, object]]:
    if job.in_queue == "cancelled":
        yield "status", "finished"
        yield "outcome", "cancelled"
    elif job.runs and job.runs[-1].ending == "never" and job.scheduler is not None:
        yield "status", "running"
        yield "outcome", None
    elif job.runs:
        ending = _known_end(
            job, job.runs[-1], is_stated=job.in_queue == "started" or job.keeps_ends
        )
        yield "status", "finished"
        yield "outcome", ending[0]
        yield "failure_class", ending[1]
    else:
        yield "status", "finished"
        yield "cause", "never_started"


def _known_end(job: TrueJob, run: TrueRun, *, is_stated: bool) -> tuple[str, str | None]:
    has_scheduler = job.scheduler is not None and (is_stated or run.ending == "preempted")
    ending = known_ending(run, has_launcher=job.has_launcher, has_scheduler=has_scheduler)
    return ending.outcome, ending.failure_class


def _requeue_cause(job: TrueJob, run: TrueRun) -> str:
    outcome, failure_class = _known_end(job, run, is_stated=job.keeps_ends)
    if not job.has_launcher and not job.keeps_ends and outcome != "preempted":
        return "unknown"
    if outcome == "preempted":
        return "preemption"
    return failure_class if failure_class in {"infra", "user"} else "unknown"


def _gpu_seconds(job: TrueJob, record: Mapping[str, Any]) -> Iterator[Mismatch]:
    """GPU time is the allocation where a scheduler states it, else what nodes had."""
    ended = [run for run in job.runs if run.ending != "never"]
    most = sum(run.gpu_seconds for run in job.runs)
    blur = sum(len(run.nodes) * run.gpus_per_node * _EDGE_SECONDS for run in job.runs)
    is_silent = any(run.ending in {"node_lost", "all_dead", "silent_success"} for run in ended)
    # Between two launchers of a node nobody but the scheduler knows what the node had.
    gaps = 0.0 if job.states_gpus and job.scheduler else sum(map(_gaps, ended))
    least = sum(run.gpu_seconds for run in ended) - blur - gaps
    if (job.scheduler is None and is_silent) or not (job.states_gpus or job.has_launcher):
        least = 0.0
    if not least <= record["gpu_seconds"] <= most + blur:
        yield "gpu_seconds", (least, most + blur), record["gpu_seconds"]
    states = sum(record["states"].values())
    if abs(states - record["gpu_seconds"]) > 1e-6:
        yield "states", record["gpu_seconds"], states


def _gaps(run: TrueRun) -> float:
    """GPU time between the attempts of a run."""
    pairs = pairwise(run.attempts)
    seconds = sum(after.begin - before.end for before, after in pairs)
    return seconds * len(run.nodes) * run.gpus_per_node


_QUICK, _ALL = range(60), range(2000)
_LATER_SECONDS = 60 * 86_400.0


def _expected(history: History, seed: int, mode: Any = "in_order") -> Expected:
    steps = deliver(history, mode, seed)
    return expect(arrivals_of(steps), Settings(), last_moment(steps) + _LATER_SECONDS)


def _mismatches(seed: int) -> list[str]:
    history = make_history(seed)
    by_id: dict[str, Mapping[str, Any]] = {
        name: record for record in _expected(history, seed).records.values()
        for name in record["ids"]
    }  # fmt: skip
    return [
        f"seed {seed} job {job.job_id}: {name}: truth {truth}, model {value}"
        for job in history.jobs
        for name, truth, value in compare_to_truth(job, by_id[job.job_id])
    ]


def test_the_model_says_what_happened() -> None:
    assert [line for seed in _QUICK for line in _mismatches(seed)] == []


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_the_model_says_what_happened_in_two_thousand_histories() -> None:
    assert [line for seed in _ALL for line in _mismatches(seed)] == []


@pytest.mark.parametrize("seed", range(6))
def test_the_way_of_delivery_changes_nothing(seed: int) -> None:
    history = make_history(seed, has_mishaps=seed % 2 == 1)
    in_order = _expected(history, seed)
    for mode in MODES:
        found = _expected(history, seed, mode)
        assert (found.counters, found.rows) == (in_order.counters, in_order.rows)
        assert _without_names(found) == _without_names(in_order)


@pytest.mark.parametrize("seed", range(3))
def test_two_slurms_of_one_number_stay_apart_in_every_way_of_delivery(seed: int) -> None:
    history = make_two_slurms(seed)
    in_order = _expected(history, seed)
    assert len(in_order.records) == 2
    for mode in MODES:
        found = _expected(history, seed, mode)
        assert _without_names(found) == _without_names(in_order)


def _without_names(expected: Expected) -> list[str]:
    """The records without their ids: which of two Slurms has the number depends on the order."""
    return sorted(
        repr({name: value for name, value in record.items() if name not in {"job_id", "ids"}})
        for record in expected.records.values()
    )
