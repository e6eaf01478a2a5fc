"""A process that is stopped: found by what its page says, from its first stop to its last."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Episode, Verdict

from .judged_jobs import TOLERANCE_RATIO, assert_begins_where_it_began, judged
from .timed_job import TimedJob


def judge_steps(steps: Steps) -> tuple[Verdict, tuple[Episode, ...]]:
    return judge(steps, score(steps))[:2]


def stopped_job(**arguments: Any) -> Steps:
    job: dict[str, Any] = {
        "ranks": 2,
        "step_seconds": 0.02,
        "num_steps": 1000,
        "from_step": 400,
        **arguments,
    }
    return TimedJob(kind="stopped", **job).steps()


@pytest.mark.parametrize("step_seconds", [0.007, 0.02, 0.05])
def test_stops_in_collectives_belong_to_an_episode_whose_first_ones_no_work_shows(
    step_seconds: float,
) -> None:
    for seed in range(8):
        job = TimedJob(
            kind="stopped", ranks=2, transfer_share=1.5, pauses=0.01, step_seconds=step_seconds,
            num_steps=1200, from_step=360, seed=seed,
        )  # fmt: skip
        assert_begins_where_it_began(job)
        assert judged(job)[0].cause == "process_stopped"


def test_waits_of_all_ranks_that_come_before_and_after_alike_are_no_stops() -> None:
    steps = stopped_job(ranks=4, num_steps=1200, from_step=600)
    slow_network = np.random.default_rng(1).random(1200) < 0.05
    steps.phases["sync"][:, slow_network] += 0.04
    _, [episode] = judge_steps(steps)
    assert episode.start_step == pytest.approx(600, abs=TOLERANCE_RATIO * 1200)


@pytest.mark.parametrize("length", [20, 60, 150])
@pytest.mark.parametrize("begin", [0, 250, 420, 800])
def test_a_slow_network_for_a_while_beside_stops_does_not_move_where_they_begin(
    begin: int, length: int
) -> None:
    steps = stopped_job()
    steps.phases["sync"][:, begin : begin + length] += 0.04
    _, episodes = judge_steps(steps)
    first = min(episode.start_step for episode in episodes if 1 in episode.ranks)
    assert first == pytest.approx(400, abs=TOLERANCE_RATIO * 1000)


def test_stops_on_a_host_whose_cores_others_have_are_named_as_what_they_are() -> None:
    for seed in range(6):
        verdict, _ = judge_steps(stopped_job(pauses=0.3, jitter=0.3, seed=seed))
        assert (verdict.ranks, verdict.cause) == ((1,), "process_stopped")


def test_a_process_that_is_stopped_in_each_step_has_one_episode_of_all_of_them() -> None:
    verdict, [episode] = judge_steps(stopped_job(step_seconds=0.2, from_step=0, num_steps=300))
    assert (verdict.ranks, verdict.phase, verdict.cause) == ((1,), None, "process_stopped")
    assert (episode.start_step, episode.ongoing) == (0, True)
    assert "stood still" in verdict.evidence[0]


def test_two_times_of_stops_far_apart_are_two_episodes() -> None:
    steps = stopped_job(from_step=100)
    assert steps.stopped is not None
    steps.stopped[1, 300:800] = 0.0
    _, episodes = judge_steps(steps)
    stops = [(e.start_step, e.end_step) for e in episodes if e.cause]
    assert [begin for begin, _ in stops] == pytest.approx([100, 800], abs=10)
    assert stops[0][1] == pytest.approx(300, abs=10)


def test_one_long_stop_is_an_episode_of_one_step_whatever_short_ones_came_before() -> None:
    steps = TimedJob(kind="healthy").steps()
    stopped = np.zeros_like(steps.seconds)
    stopped[2, [20, 300]] = 0.015, 20.0
    steps.phases["forward"][2] += stopped[2]
    steps.phases["sync"][[0, 1, 3]] += stopped[2]
    steps = replace(steps, seconds=steps.seconds + stopped[2], stopped=stopped)
    verdict, [episode] = judge_steps(steps)
    assert (verdict.ranks, verdict.cause) == ((2,), "process_stopped")
    assert (episode.start_step, episode.end_step) == (300, 300)
    assert episode.lost_seconds == pytest.approx(20.0, rel=0.01)


@pytest.mark.parametrize("count", [3, 60])
def test_a_few_short_stops_and_those_that_cost_nothing_name_nobody(count: int) -> None:
    steps = TimedJob(kind="healthy").steps()
    stopped = np.zeros_like(steps.seconds)
    stopped[1, 100 : 100 + 5 * count : 5] = 0.02
    if count == 3:
        steps.phases["forward"] += stopped
    assert judge_steps(replace(steps, stopped=stopped))[0].kind == "nobody"


def test_a_machine_that_pauses_with_all_its_ranks_has_no_slow_one() -> None:
    steps = stopped_job()
    assert steps.stopped is not None
    for values in (steps.seconds, *steps.phases.values()):
        values[0] = values[1]
    # The other rank's thread writes it into the step after, now and then.
    steps.stopped[0] = np.where(
        np.arange(1000) < 600, steps.stopped[1], np.roll(steps.stopped[1], 1)
    )
    assert not [e for e in judge_steps(steps)[1] if e.cause]


def test_a_node_that_pauses_keeps_the_others_waiting() -> None:
    steps = stopped_job(ranks=4)
    nodes = ("a", "a", "b", "b")
    members = tuple(replace(m, node=n) for m, n in zip(steps.members, nodes, strict=True))
    assert steps.stopped is not None
    for values in (steps.stopped, steps.seconds, *steps.phases.values()):
        values[0] = values[1]
    assert set(judge_steps(replace(steps, members=members))[0].ranks) == {0, 1}


def test_another_fault_of_the_same_rank_is_named_beside_its_stops() -> None:
    steps = stopped_job(ranks=4, from_step=600)
    steps.phases["data"][1, 100:300] += 0.01
    for rank in (0, 2, 3):
        steps.phases["sync"][rank, 100:300] += 0.01
    _, episodes = judge_steps(replace(steps, seconds=np.sum(list(steps.phases.values()), axis=0)))
    assert [(e.phase, e.cause is not None) for e in episodes] == [
        ("data", False), (None, True)
    ]  # fmt: skip
    assert [e.start_step for e in episodes] == pytest.approx([100, 600], abs=10)


def test_a_stop_that_is_noticed_a_step_late_is_taken_from_the_step_that_it_lengthened() -> None:
    for seed in range(4):
        steps = stopped_job(ranks=3, seed=seed)
        assert steps.stopped is not None
        steps.stopped[1] = np.roll(steps.stopped[1], 1)
        verdict, [episode] = judge_steps(steps)
        assert (verdict.ranks, verdict.cause) == ((1,), "process_stopped")
        assert episode.start_step == pytest.approx(400, abs=10)


def test_a_page_that_knows_of_no_stops_names_a_slow_rank_without_a_cause() -> None:
    verdict, _ = judge_steps(replace(stopped_job(step_seconds=0.1), stopped=None))
    assert (verdict.ranks, verdict.cause) == ((1,), None)
