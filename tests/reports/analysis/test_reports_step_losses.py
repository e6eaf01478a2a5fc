"""Slow steps are grouped by what they have in common, sorted by cost, and never a list of noise."""

import numpy as np
import pytest

from lockstep_reports.analysis.summary import Pauses, loss_sentence, step_losses


def series(slow: dict[int, float], num_steps: int = 3500, noise: float = 0.01) -> np.ndarray:
    seconds = 1 + np.abs(np.random.default_rng(3).normal(0, noise, num_steps))
    for step, factor in slow.items():
        seconds[step] *= factor
    return seconds


def losses_of(slow: dict[int, float]) -> list[tuple[str, int, int]]:
    seconds = series(slow)
    found = step_losses(seconds, np.arange(len(seconds)))
    return [(loss.kind, loss.first_step, loss.count) for loss in found]


def test_steps_at_equal_distances_are_one_group_with_their_period() -> None:
    seconds = series({1002: 70.0, 2005: 8.0, 3008: 8.0, 1500: 1.5})
    periodic, single = step_losses(seconds, np.arange(len(seconds)))
    assert (periodic.kind, periodic.period_steps, periodic.count) == ("periodic", 1003, 3)
    assert periodic.lost_seconds == pytest.approx(83, rel=0.05)
    assert "Every 1,003 steps" in loss_sentence(periodic)
    assert (single.kind, single.first_step) == ("single", 1500)


def test_long_pauses_at_equal_distances_are_one_group_among_many_small_ones() -> None:
    draw = np.random.default_rng(8)
    noise = dict.fromkeys(draw.choice(np.arange(10, 3400), 300, replace=False).tolist(), 1.4)
    pauses = {step: 40.0 + step % 7 for step in range(199, 3500, 200)}
    first, *others = losses_of({**noise, **pauses})
    assert first == ("periodic", 199, 17)
    assert "restart" not in {kind for kind, _, _ in others}


def test_a_slow_burst_and_a_restart_are_told_apart_and_the_dearest_comes_first() -> None:
    slow = {**dict.fromkeys(range(300, 320), 2.0), 2500: 80.0}
    assert losses_of(slow) == [("restart", 2500, 1), ("burst", 300, 20)]
    restart, burst = step_losses(series(slow), np.arange(3500))
    assert "most likely a restart" in loss_sentence(restart)
    assert "slow in succession" in loss_sentence(burst)


def test_many_irregular_slow_steps_are_listed_up_to_eight_and_the_rest_is_summed() -> None:
    draw = np.random.default_rng(8)
    steps = draw.choice(np.arange(10, 3400), 40, replace=False).tolist()
    found = losses_of({step: 2 + index / 50 for index, step in enumerate(steps)})
    assert found[-1][0] == "rest"
    assert sum(count for _, _, count in found) == 40


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1, 0.3])
def test_noise_alone_is_no_list(noise: float) -> None:
    seconds = series({}, noise=noise)
    assert step_losses(seconds, np.arange(len(seconds))) == ()


def test_without_steps_or_times_nothing_is_lost() -> None:
    assert step_losses(np.zeros(0), np.arange(0)) == ()
    assert step_losses(np.full(5, np.nan), np.arange(5)) == ()


def test_a_pause_that_explains_half_of_a_loss_is_its_cause_with_the_ranks_that_made_it() -> None:
    seconds = series({1000: 3.0, 2000: 3.0, 3000: 3.0, 1777: 3.0})
    saves, evaluations = np.zeros((2, len(seconds))), np.zeros((2, len(seconds)))
    saves[1, [1000, 2000, 3000]] = 1.9
    evaluations[:, 1777] = 0.4
    pauses = Pauses((4, 7), {"checkpoint": saves, "eval": evaluations})
    periodic, single = step_losses(seconds, np.arange(len(seconds)), pauses)
    assert (periodic.phase, periodic.ranks) == ("checkpoint", (7,))
    assert loss_sentence(periodic).endswith("; rank 7 saved a checkpoint then.")
    assert (single.phase, single.ranks) == (None, ())
