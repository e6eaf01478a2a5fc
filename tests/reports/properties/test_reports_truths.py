"""The truths of the public recordings that no other test states."""

from pathlib import Path

import numpy as np
import pytest

from ..report_command import report_json, reported

FIXTURES = Path(__file__).parents[2] / "fixtures"
WORKERS = FIXTURES / "minibatch-alibaba"


def beyond_others(seconds: np.ndarray, samples: int = 18) -> np.ndarray:
    """Trailing mean of each worker's time relative to the median of all others."""
    others = [np.median(np.delete(seconds, row, axis=0), axis=0) for row in range(len(seconds))]
    relative = seconds / np.array(others)
    sums = np.cumsum(np.pad(relative, ((0, 0), (1, 0))), axis=1)
    mean: np.ndarray = (sums[:, samples:] - sums[:, :-samples]) / samples
    return mean


def test_workers_were_late_before_a_trailing_mean_against_the_others_could_show_it() -> None:
    """The told onsets, 2291, 2271 and 2441, are where that mean passes 1.15 for good.

    A trailing mean passes late, and later still where half of the others are slow too. The report
    tells the step from which on a worker was slower than its own past: before each of these.
    """
    analysis = reported(WORKERS / "job_3_norm.csv")
    common_seconds = analysis.steps.seconds[:, 1:]
    mean, numbers = beyond_others(common_seconds), analysis.steps.numbers[18:]
    passed = {
        worker: int(numbers[np.flatnonzero(mean[worker] < 1.15).max() + 1]) for worker in (6, 7, 9)
    }
    assert passed == {6: 2291, 7: 2271, 9: 2441}
    assert mean[[6, 7, 9]].max() == pytest.approx(1.21, abs=0.005)
    began = {episode.ranks[0]: episode.start_step for episode in analysis.episodes}
    assert set(passed) <= set(began)
    for worker, plotted_step in passed.items():
        step = int(np.searchsorted(analysis.steps.numbers, began[worker]))
        own = analysis.steps.seconds[worker]
        assert np.isfinite(own).all()
        assert began[worker] <= plotted_step
        assert np.median(own[step:]) > 1.2 * np.median(own[:step])
    assert all(episode.ongoing for episode in analysis.episodes)


def test_two_workers_that_are_a_little_slower_for_good_are_not_named() -> None:
    analysis = reported(WORKERS / "job_3_norm.csv")
    common_seconds = analysis.steps.seconds[:, 1:]
    relative = common_seconds / np.median(common_seconds, axis=0)
    assert np.median(relative[:2], axis=1) == pytest.approx([1.085, 1.085], abs=0.005)
    assert not {0, 1} & set(analysis.verdict.ranks)


def test_the_log_beside_the_power_readings_has_one_clock() -> None:
    """Its local times are eight hours ahead, and half an hour of training lies between two."""
    (path,) = (FIXTURES / "mlperf-power").glob("*result*")
    payload = report_json(path)
    assert payload["outcome"] == "succeeded"
    assert payload["startup_seconds"] == pytest.approx(81.757, abs=1e-3)
    assert payload["run_seconds"] == pytest.approx(1694.52, abs=1e-2)
    assert payload["wall_seconds"] >= 1776
    assert payload["last_sign"] >= payload["last_progress"]
