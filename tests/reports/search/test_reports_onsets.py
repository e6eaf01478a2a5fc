"""An episode begins where it began, whatever the fault: within 5 steps or 2 % of the run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_reports.search.ends import find_ends
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge

from .judged_jobs import (
    MIN_TOLERANCE_STEPS,
    TOLERANCE_RATIO,
    assert_begins_where_it_began,
    judged,
)
from .timed_job import TimedJob


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "phase"},
        {"kind": "sparse", "every": 5},
        {"kind": "sparse", "every": 10},
        {"kind": "stopped", "step_seconds": 0.007, "num_steps": 1500},
        {"kind": "stopped", "step_seconds": 0.05},
        {"kind": "stopped", "step_seconds": 0.9},
        {"kind": "fetch"},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
def test_an_episode_begins_where_the_fault_began(fault: dict[str, Any], share: float) -> None:
    for seed, from_step in enumerate((150, 400)):
        job = TimedJob(share=share, from_step=from_step, rank=seed, seed=seed, **fault)
        assert_begins_where_it_began(job)


@pytest.mark.parametrize("kind", ["phase", "sparse", "stopped"])
def test_pauses_of_all_ranks_before_a_fault_are_no_part_of_it(kind: str) -> None:
    for seed in range(3):
        assert_begins_where_it_began(
            TimedJob(kind=kind, share=0.4, pauses=0.03, from_step=350, seed=seed)
        )


@pytest.mark.parametrize("step_seconds", [0.007, 0.05, 0.9])
def test_a_process_that_is_stopped_from_outside_is_told_as_that(step_seconds: float) -> None:
    verdict, episodes = judged(TimedJob(kind="stopped", step_seconds=step_seconds))
    assert (verdict.ranks, verdict.phase, verdict.cause) == ((1,), None, "process_stopped")
    assert "stood still" in " ".join(verdict.evidence)
    assert sum(e.lost_seconds for e in episodes) > 0


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_phase_that_sleeps_is_told_by_its_name_and_not_as_a_stopped_process(phase: str) -> None:
    steps = TimedJob(kind="phase", phase=phase).steps()
    assert steps.blocked is not None
    steps.blocked[1, 200:] += 0.2 * 0.1
    verdict, _ = judge(steps, score(steps))[:2]
    assert (verdict.phase, verdict.cause) == (phase, "loader" if phase == "data" else None)


def test_a_phase_that_sleeps_on_a_busy_host_is_no_stopped_process() -> None:
    steps = TimedJob(kind="phase", phase="backward").steps()
    assert steps.blocked is not None
    steps.blocked[1, 200:] += 0.2 * 0.1
    # Other work lengthens what the rank does besides, as much as a stop of that length would.
    steps.phases["forward"][1, 200:] += np.random.default_rng(3).exponential(0.008, 400)
    verdict, _ = judge(steps, score(steps))[:2]
    assert (verdict.ranks, verdict.phase, verdict.cause) == ((1,), "backward", None)


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_phase_that_sleeps_longer_where_all_wait_for_devices_asleep_is_named(phase: str) -> None:
    steps = TimedJob(kind="phase", phase=phase, share=1.0).steps()
    assert steps.blocked is not None
    steps.blocked[:] += 0.7 * 0.1
    steps.blocked[1, 200:] += 1.0 * 0.1
    verdict, _ = judge(steps, score(steps))[:2]
    assert (verdict.ranks, verdict.phase) == ((1,), phase)


@pytest.mark.parametrize("phase", ["forward", "optimizer"])
def test_who_is_healthy_is_not_slow_beside_a_rank_that_usually_is(phase: str) -> None:
    for seed in range(6):
        job = TimedJob(
            kind="phase", phase=phase, ranks=2, share=0.5, jitter=0.35, num_steps=1200,
            from_step=360, seed=seed,
        )  # fmt: skip
        assert_begins_where_it_began(job)


@pytest.mark.parametrize("step_seconds", [0.007, 0.02])
def test_a_stop_in_one_step_of_many_is_found_beside_other_work(step_seconds: float) -> None:
    for seed in range(3):
        job = TimedJob(
            kind="stopped", ranks=2, pauses=0.06, num_steps=1500, from_step=450,
            step_seconds=step_seconds, jitter=0.3, seed=seed,
        )  # fmt: skip
        assert_begins_where_it_began(job)
        assert judged(job)[0].cause == "process_stopped"


def test_ranks_that_sleep_now_and_then_as_on_a_disk_are_not_named() -> None:
    # The bound of a whole run is one in 1,000.
    for seed in range(30):
        job = TimedJob(
            kind="healthy", ranks=2 + seed % 3, num_steps=400, seed=seed,
            step_seconds=(0.007, 0.1)[seed % 2], sleeps=(0.01, 0.05, 0.2)[seed % 3], pauses=0.02,
        )  # fmt: skip
        assert judged(job)[0].ranks == (), job


def test_short_steps_that_sleep_and_are_read_together_are_no_stopped_process() -> None:
    job = TimedJob(kind="phase", phase="data", ranks=2, share=0.5, step_seconds=0.007, pauses=0.05)
    steps = job.steps()
    assert steps.blocked is not None
    # Five steps are read together, and the longest of them is taken to have slept for all.
    slept = np.add.reduceat(np.where(np.arange(600) < 200, 0.0, 0.0035), np.arange(0, 600, 5))
    longest = [np.argmax(part) for part in np.split(steps.seconds[1], np.arange(5, 600, 5))]
    steps.blocked[1] = 0.0
    steps.blocked[1, np.arange(0, 600, 5) + longest] = slept
    verdict, _ = judge(steps, score(steps))[:2]
    assert (verdict.ranks, verdict.phase, verdict.cause) == ((1,), "data", "loader")


def test_what_was_fetched_ahead_is_told_with_the_step_in_which_the_workers_fell_behind() -> None:
    verdict, episodes = judged(TimedJob(kind="fetch", workers=4, share=0.2, num_steps=900))
    assert (verdict.ranks, verdict.phase) == ((1,), "data")
    assert "fetch up to 8 batches ahead" in " ".join(verdict.evidence)
    assert len(episodes[0].lost_by_step) == episodes[0].columns.stop - episodes[0].columns.start


@given(first=st.integers(20, 60), length=st.integers(20, 60), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_the_ends_of_a_step_in_noise_are_found_from_any_part_of_it(
    first: int, length: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(0, 1, (1, 160))
    values[0, first : first + length] += 6
    found = find_ends(values, 2.0, (first + 5, first + length - 6), (0, 159))
    assert found == pytest.approx((first, first + length - 1), abs=2)


def test_a_late_step_or_two_at_the_end_do_not_keep_the_begin_of_a_fault_in_the_noise() -> None:
    steps = np.arange(1000)
    noise = np.random.default_rng(4).random(1000)
    lateness = np.where(steps < 300, 0.1 * (noise < 0.4), 1.0 * (noise < 0.6))
    lateness[[996, 997, 998, 999]] = 1.0, 0.1, 0.1, 0.0
    first, last = find_ends(lateness[None], 0.06, (160, 998), (0, 999))
    assert first == pytest.approx(300, abs=2)
    assert last == 998


def test_nothing_known_moves_no_end() -> None:
    assert find_ends(np.full((1, 50), np.nan), 1.0, (10, 20), (0, 49)) == (10, 20)


@pytest.mark.parametrize("num_steps", [60, 300])
@pytest.mark.parametrize("drift", [-0.5, 0.0, 0.5])
@pytest.mark.parametrize("begin_ratio", [0.0, 0.33])
def test_an_episode_holds_all_that_is_about_as_late(
    num_steps: int, drift: float, begin_ratio: float
) -> None:
    steps, begin = np.arange(num_steps), int(begin_ratio * num_steps)
    tolerance = max(MIN_TOLERANCE_STEPS, TOLERANCE_RATIO * num_steps)
    for seed in range(20):
        draw = np.random.default_rng(seed)
        height = 0.6 * draw.lognormal(0.0, 0.2, num_steps) * (1 + drift * steps / num_steps)
        noise = np.abs(draw.normal(0.0, 0.03, num_steps))
        lateness = np.where(steps >= begin, height, noise)[None]
        first, last = find_ends(lateness, 0.06, (begin, num_steps - 1), (0, num_steps - 1))
        assert abs(first - begin) <= tolerance
        assert abs(last - (num_steps - 1)) <= tolerance


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "phase"},
        {"kind": "stopped", "step_seconds": 0.05},
        {"kind": "stopped", "step_seconds": 0.9},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
def test_who_is_slow_from_the_first_step_to_the_last_has_one_episode_over_all(
    fault: dict[str, Any], share: float
) -> None:
    for seed, num_steps in enumerate((300, 1000, 300, 1000)):
        job = TimedJob(
            share=share,
            from_step=0,
            rank=seed,
            seed=seed,
            num_steps=num_steps,
            pauses=0.02,
            **fault,
        )
        verdict, [episode] = judged(job)
        assert verdict.ranks == (seed,)
        assert episode.end_step - episode.start_step >= 0.9 * num_steps


def test_what_grows_or_falls_to_a_lower_level_is_one_episode_while_it_is_late() -> None:
    steps, begin = np.arange(600), 200
    for seed in range(10):
        noise = np.abs(np.random.default_rng(seed).normal(0.0, 0.02, len(steps)))
        grows = noise + np.clip((steps - begin) / 400, 0.0, 1.0) * 0.5
        first, last = find_ends(grows[None], 0.06, (230, 599), (0, 599))
        assert begin < first < begin + 60  # it passes the threshold after 48 steps
        assert last == len(steps) - 1
        falls = noise + np.where(steps < 400, 0.5, 0.15) * (steps >= begin)
        assert find_ends(falls[None], 0.06, (begin, 599), (0, 599)) == (begin, 599)
