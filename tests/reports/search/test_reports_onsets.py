"""An episode begins and ends where its lateness did, in noise and where it grows or falls."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_reports.search.candidates import find_ends
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge

from ..synthetic_job import Slow, SyntheticJob


def test_what_was_fetched_ahead_is_told_with_the_step_in_which_the_workers_fell_behind() -> None:
    slow = (Slow(rank=1, phase="data", seconds=0.05, from_step=120),)
    steps = SyntheticJob(num_steps=400, slow=slow).steps()
    members = (replace(m, loader_workers=4, batches_ahead=8) for m in steps.members)
    verdict, [episode] = judge(steps := replace(steps, members=tuple(members)), score(steps))[:2]
    assert (verdict.ranks, verdict.phase) == ((1,), "data")
    assert "fetch up to 8 batches ahead" in " ".join(verdict.evidence)
    assert episode.start_step < 120
    assert len(episode.lost_by_step) == episode.columns.stop - episode.columns.start


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
