"""The truths of the public recordings, and where each is tested.

=======================  ============================================  ===========================
recording                truth                                         test
=======================  ============================================  ===========================
straggler-bytedance      S 1.1787, M_S 1.219, M_W 0.031; each step     what_if, traces
                         and split of the published answer
                         last stage too heavy, ranks 6 and 7           what_if
                         both at 1.62 times the median                 properties_operations
                         8 ranks, 32 steps of about 2.2 s              here
minibatch-alibaba job_2  nobody; 0.82 to 1.09 of the median            recordings, here
                         one pair told twice, one dangling row         recordings, here
minibatch-alibaba job_3  6, 7 and 9 slow to the end, onsets            recordings, here
                         peak 1.21; 0 and 1 steady at 1.08             here
mlperf-steps             eos: 2,432 ranks, 318 s, 3,571.4 s, 273       logs
                         steps, 12.701 s, step 270 at 2.09, 13.8 s
                         Cisco: 64 ranks, 3,430 steps, three spikes    logs
                         Nebius: step 41 at 1.36, 917 s                logs
                         n1452: 11,616 ranks, 832 s, 207.1 s           logs
mlperf-incidents         succeeded, killed 12 s later; data error of   logs
                         all ranks; all crash before training; healthy
flight-recorder-nvrx     ranks 9 and 14, by what they had entered      recordings,
                                                                       properties_flights
kineto-hta               two ranks are paired, nobody is slow       recordings
megatron-iteration-times clean after step 2                            recordings, here
                         4,538 points, 8.961 s, seven high ones,       recordings, here
                         restarts of about 79 s
mlperf-power             the log of the run: succeeded                 here
=======================  ============================================  ===========================

A name stands for ``test_reports_<name>.py``. That what must not matter does not is in
``test_reports_properties_*.py``, a file a kind of recording.
"""

from pathlib import Path

import numpy as np
import pytest

from lockstep_reports import nan_stats

from ..report_command import report_json, reported

FIXTURES = Path(__file__).parents[2] / "fixtures"
WORKERS = FIXTURES / "minibatch-alibaba"


def test_the_published_trace_has_eight_ranks_and_thirty_two_steps() -> None:
    payload = report_json(FIXTURES / "straggler-bytedance/trace-ST.parquet")
    assert (len(payload["ranks"]), payload["steps"]["count"]) == (8, 32)
    assert payload["steps"]["median_seconds"] == pytest.approx(2.2, abs=0.05)


def test_workers_that_differ_for_good_stand_between_082_and_109_of_the_middle() -> None:
    analysis = reported(WORKERS / "job_2_norm.csv")
    medians = nan_stats.median(analysis.steps.seconds, axis=1)
    relative = medians / np.median(medians)
    assert (relative.min(), relative.max()) == pytest.approx((0.82, 1.09), abs=0.01)
    assert any("1 pair" in note for note in analysis.steps.notes)
    assert any("recorded by one worker only" in note for note in analysis.steps.notes)
    assert np.isfinite(analysis.steps.seconds[:, -1]).sum() == 1


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


def test_restarts_of_a_long_job_cost_about_79_seconds_each() -> None:
    """Of the seven high points five are that high; two have less, and the first is the warm-up."""
    (path,) = (FIXTURES / "megatron-iteration-times").glob("mixtral*")
    payload = report_json(path)
    high = [spike for spike in payload["steps"]["spikes"] if spike["ratio"] > 2]
    assert len(high) == 7
    restarts = [spike["ratio"] for spike in high if spike["ratio"] > 5 and spike["index"]]
    assert restarts == pytest.approx([9.8] * 4, abs=0.15)
    median = payload["steps"]["median_seconds"]
    assert [(ratio - 1) * median for ratio in restarts] == pytest.approx([79] * 4, abs=1.5)


def test_the_log_beside_the_power_readings_has_one_clock() -> None:
    """Its local times are eight hours ahead, and half an hour of training lies between two."""
    (path,) = (FIXTURES / "mlperf-power").glob("*result*")
    payload = report_json(path)
    assert payload["outcome"] == "succeeded"
    assert payload["startup_seconds"] == pytest.approx(81.757, abs=1e-3)
    assert payload["run_seconds"] == pytest.approx(1694.52, abs=1e-2)
    assert payload["wall_seconds"] >= 1776
    assert payload["last_sign"] >= payload["last_progress"]
