"""The goodput of a whole job covers all its attempts and sums to the allocated time."""

from typing import Any

import pytest

from lockstep_outcomes.progress.goodput import whole_job
from lockstep_records.events.event import Event


def event(kind: str, time: float, attempt: int = 0, node: str = "a", **fields: Any) -> Event:
    return Event(kind=kind, job_id="j", attempt=attempt, time=time, node=node, fields=fields)


def goodput(time: float, attempt: int, node: str = "a", **seconds: float) -> Event:
    return event("goodput", time, attempt, node, rank_seconds=seconds, num_ranks=4)


def test_states_of_two_attempts_and_the_recovery_between_sum_to_the_allocated_time() -> None:
    events = [
        event("job_started", 0.0),
        event("attempt_started", 5.0),
        goodput(50.0, 0, productive=150.0, startup=50.0),
        goodput(100.0, 0, productive=300.0, startup=50.0, hang=50.0),
        event("attempt_ended", 100.0),
        event("attempt_started", 112.0, 1),
        goodput(212.0, 1, productive=300.0, restore=60.0, rework=40.0),
        event("attempt_ended", 212.0, 1),
        event("job_finished", 212.0, 1),
    ]
    job = whole_job(events)
    assert job is not None
    assert job.num_attempts == 2
    assert job.goodput.gpu_seconds == {
        "productive": 600.0, "startup": 50.0, "hang": 50.0, "restore": 60.0, "rework": 40.0,
        "recovery": 48.0,
    }  # fmt: skip
    assert job.goodput.allocated_gpu_seconds == pytest.approx(212.0 * 4)
    assert job.elapsed_seconds == pytest.approx(212.0)


def test_ranks_of_several_nodes_are_added() -> None:
    events = [
        event("attempt_started", 0.0),
        goodput(100.0, 0, "a", productive=400.0),
        goodput(100.0, 0, "b", productive=300.0, idle=100.0),
    ]
    job = whole_job(events)
    assert job is not None
    assert job.goodput.allocated_gpu_seconds == 800.0
    assert job.elapsed_seconds == 100.0


def test_between_two_launches_nothing_is_allocated() -> None:
    events = [
        event("job_started", 0.0), event("attempt_started", 0.0),
        goodput(100.0, 0, productive=400.0), event("attempt_ended", 100.0),
        event("job_started", 5000.0, 1), event("attempt_started", 5000.0, 1),
        goodput(5100.0, 1, productive=400.0), event("attempt_ended", 5100.0, 1),
    ]  # fmt: skip
    job = whole_job(events)
    assert job is not None
    assert "recovery" not in job.goodput.gpu_seconds
    assert job.goodput.allocated_gpu_seconds == 800.0


def test_a_job_of_which_nobody_told_a_goodput_has_none() -> None:
    assert whole_job([event("job_started", 0.0), event("attempt_started", 1.0)]) is None
