"""Workers' own step times: short faults are found, noise names nobody, losses are true."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep_reports.chance import measure_noise
from lockstep_reports.recording.steps import Steps, timed_steps
from lockstep_reports.verdict.own_times import judge_own_times
from lockstep_reports.verdict.verdict import Episode, Verdict, saved_by_repair

from .worker_tables import Fault, WorkerTable


def steps_of(seconds: np.ndarray) -> Steps:
    return timed_steps("job", list(range(len(seconds))), np.arange(seconds.shape[1]), seconds)


def judged(table: WorkerTable) -> tuple[Verdict, tuple[Episode, ...]]:
    return judge_own_times(steps_of(table.seconds()))


def test_noise_that_drifts_too_far_to_judge_is_said_to_do_so() -> None:
    drifting, _ = judged(WorkerTable(correlation=0.97, num_steps=1000, common=0.0))
    assert "drift" in " ".join(drifting.evidence)
    steady, _ = judged(WorkerTable(correlation=0.5, num_steps=1000, common=0.0))
    assert "drift" not in " ".join(steady.evidence)


def test_a_worker_slow_from_first_to_last_is_compared_with_the_faster_ones() -> None:
    fault = Fault(worker=2, first=0, steps=250, factor=1.3)
    verdict, episodes = judged(WorkerTable(levels=0.01, faults=(fault,)))
    assert verdict.ranks == (2,)
    assert "times the faster ranks' time from the first recorded step" in verdict.evidence[0]
    assert "its own usual" not in " ".join(verdict.evidence)
    assert episodes[0].late_seconds == pytest.approx(0.3, rel=0.15)


def test_who_turned_slow_but_is_never_the_slowest_costs_nothing_and_is_not_named() -> None:
    seconds = WorkerTable(levels=0.0).seconds()
    seconds[0] *= 0.6
    seconds[0, 150:] *= 1.5
    verdict, episodes = judge_own_times(steps_of(seconds))
    assert (verdict.kind, episodes) == ("nobody", ())


@pytest.mark.parametrize("factor", [1.5, 20.0])
def test_the_loss_of_several_slow_workers_is_what_repairing_them_would_save(factor: float) -> None:
    faults = tuple(Fault(worker=worker, first=100, steps=80, factor=factor) for worker in (1, 4, 7))
    table = WorkerTable(levels=0.0, faults=faults)
    seconds = table.seconds()
    healthy = replace(table, faults=()).seconds()
    verdict, episodes = judge_own_times(steps_of(seconds))
    assert set(verdict.ranks) == {1, 4, 7}
    saved = float((seconds.max(axis=0) - healthy.max(axis=0)).sum())
    lost = sum(episode.lost_seconds for episode in episodes)
    assert lost == pytest.approx(saved, rel=0.1)
    assert lost < seconds.max(axis=0).sum()


def test_layers_of_time_are_shared_by_those_who_hold_them_up() -> None:
    seconds = np.array([[4.0], [3.0], [1.0]])
    repaired = np.array([[1.0], [1.0], [1.0]])
    # One second is held up by the first alone, two by the first and the second.
    assert saved_by_repair(seconds, repaired).tolist() == [[2.0], [1.0], [0.0]]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_noise_of_a_healthy_table_is_measured_as_it_was_made(correlation: float) -> None:
    table = WorkerTable(correlation=correlation, num_steps=2000, common=0.0, levels=0.0)
    noise = measure_noise(np.log(table.seconds()))
    assert noise is not None
    assert noise.correlation == pytest.approx(correlation, abs=0.05)
    assert noise.deviation == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("every", [5, 12, 20])
def test_a_worker_three_times_as_long_in_each_nth_step_is_named_as_slow_now_and_then(
    every: int,
) -> None:
    fault = Fault(worker=1, first=3, steps=397, factor=3.0, every=every)
    verdict, episodes = judged(WorkerTable(workers=4, num_steps=400, faults=(fault,)))
    assert verdict.ranks == (1,)
    assert "now and then" in verdict.evidence[0]
    assert sum(e.lost_seconds for e in episodes) == pytest.approx(2 * (397 // every + 1), rel=0.2)
