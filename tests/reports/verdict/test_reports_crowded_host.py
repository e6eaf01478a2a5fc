"""On a host whose cores are shared, who is slow by its own is told from what the host does."""

from dataclasses import replace

import numpy as np
import pytest

from ..synthetic_job import Slow, SyntheticJob
from .waiting_jobs import analysed, crowded


@pytest.mark.parametrize(("wait_ratio", "is_named"), [(0.0, True), (0.2, False)])
def test_a_fifth_more_time_on_a_core_is_the_hosts_where_others_take_cores_and_caches(
    wait_ratio: float, *, is_named: bool
) -> None:
    slow = Slow(rank=1, seconds=0.018, from_step=60)
    steps = crowded(SyntheticJob(slow=(slow,), num_steps=400).steps(), wait_ratio)
    awake = replace(steps, blocked=np.zeros_like(steps.seconds))
    verdict = analysed(awake).verdict
    assert (verdict.ranks == (1,)) is is_named
    assert verdict.cause == (None if is_named else "busy_host")


def test_a_fifth_more_of_sleep_is_the_ranks_own_on_a_crowded_host_too() -> None:
    slow = Slow(rank=1, seconds=0.018, from_step=60)
    steps = crowded(SyntheticJob(slow=(slow,), num_steps=400).steps(), 0.2)
    blocked = np.zeros_like(steps.seconds)
    blocked[1, 60:] = 0.018
    assert analysed(replace(steps, blocked=blocked)).verdict.ranks == (1,)


def test_a_stop_is_told_beside_a_core_that_is_slower_for_longer() -> None:
    slow = Slow(rank=1, seconds=0.018, from_step=20)
    steps = crowded(SyntheticJob(slow=(slow,), num_steps=400).steps(), 0.2)
    stopped = np.zeros_like(steps.seconds)
    for number, column in enumerate(range(150, 400, 9)):
        phase = ("forward", "backward", "optimizer")[number % 3]
        stopped[1, column] = 0.08
        steps.phases[phase][1, column] += 0.08
        steps.phases["sync"][[0, 2, 3], column] += 0.08
    seconds = np.sum(list(steps.phases.values()), axis=0)
    steps = replace(steps, seconds=seconds, stopped=stopped, blocked=np.zeros_like(seconds))
    analysis = analysed(steps)
    assert (analysis.verdict.ranks, analysis.verdict.cause) == ((1,), "process_stopped")
    stop = next(e for e in analysis.episodes if e.cause is not None)
    assert stop.start_step == 150
    assert 0.8 * 28 * 0.08 < stop.lost_seconds <= 28 * 0.08
    assert not any(line.startswith("Rank 1 came last") for line in stop.evidence)


def test_slow_steps_of_all_ranks_are_a_crowded_hosts_but_for_sleep_and_uneven_data() -> None:
    everywhere = tuple(
        Slow(rank=rank, seconds=0.06, from_step=60, until_step=140) for rank in range(4)
    )
    job = SyntheticJob(slow=everywhere, num_steps=240)
    assert analysed(job.steps()).verdict.kind == "workload"
    steps = crowded(job.steps(), 0.3)
    awake = replace(steps, blocked=np.zeros_like(steps.seconds))
    verdict = analysed(awake).verdict
    assert (verdict.kind, verdict.cause) == ("nobody", "busy_host")
    assert awake.blocked is not None
    awake.blocked[:, 60:140] = 0.06
    assert analysed(awake).verdict.kind == "workload"
    tokens = np.full(steps.seconds.shape, 100.0)
    tokens[:, 60:140] = 180.0
    uneven = replace(steps, blocked=np.zeros_like(steps.seconds), tokens=tokens)
    verdict = analysed(uneven).verdict
    assert (verdict.kind, verdict.cause) == ("workload", "tokens")


def test_who_is_waited_for_without_longer_work_on_a_crowded_host_without_gpus_is_excused() -> None:
    steps = crowded(SyntheticJob(num_steps=400).steps(), 0.2)
    steps.phases["sync"][[0, 2, 3], 100:200] += 0.02
    steps = replace(steps, seconds=np.sum(list(steps.phases.values()), axis=0))
    assert steps.run_queue is not None
    steps = replace(steps, blocked=np.zeros_like(steps.seconds))
    quiet = replace(steps, run_queue=np.zeros_like(steps.run_queue))
    assert analysed(quiet).verdict.ranks == (1,)
    assert analysed(steps).verdict.ranks == ()
    asleep = np.zeros_like(steps.seconds)
    asleep[1, 100:200] = 0.015
    assert analysed(replace(steps, blocked=asleep)).verdict.ranks == (1,)
    members = tuple(replace(member, gpu_uuid=f"GPU-{member.rank}") for member in steps.members)
    assert analysed(replace(steps, members=members)).verdict.ranks == (1,)
