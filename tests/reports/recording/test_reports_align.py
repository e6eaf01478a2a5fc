"""Arrivals of nodes whose clocks differ or drift are put on one clock, and how well is told."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep_reports.recording.align import align, drift_of

from ..synthetic_job import Slow, SyntheticJob


def test_begins_and_arrivals_of_steps_lie_on_the_common_clock() -> None:
    job = SyntheticJob(ranks=6, nodes=3, slow=(Slow(rank=2),))
    true = align(job.steps())
    skewed = align(replace(job, clock_skew={2: 0.03}).steps())
    np.testing.assert_allclose(skewed.start, true.start, rtol=0, atol=1e-6)
    np.testing.assert_allclose(skewed.last_arrival, true.last_arrival, rtol=0, atol=1e-6)
    assert skewed.offsets == pytest.approx({"node-0": 0.0, "node-1": 0.0, "node-2": 0.03}, abs=1e-6)


@pytest.mark.parametrize("nodes", [2, 3])
def test_nodes_are_put_on_one_clock_from_two_on(nodes: int) -> None:
    job = SyntheticJob(ranks=6, nodes=nodes, clock_skew={0: 0.03})
    offsets = align(job.steps()).offsets
    assert offsets["node-0"] - offsets["node-1"] == pytest.approx(0.03, abs=1e-6)


def test_ranks_of_one_node_share_its_clock() -> None:
    steps = SyntheticJob().steps()
    alignment = align(steps)
    assert (alignment.offsets, alignment.drifts) == ({"node-0": 0.0}, {"node-0": None})
    np.testing.assert_array_equal(alignment.start, steps.start)


def test_the_residual_is_what_no_offset_explains_and_its_tail_is_told_beside_it() -> None:
    steps = SyntheticJob(ranks=6, nodes=3, clock_skew={1: 0.5}).steps()
    assert align(steps).residual_seconds == pytest.approx(0.0, abs=1e-6)
    late = np.zeros_like(steps.last_arrival)
    late[5, ::10] = 0.004
    alignment = align(replace(steps, last_arrival=steps.last_arrival + late))
    assert alignment.residual_seconds == pytest.approx(0.0, abs=1e-6)
    assert alignment.residual_p95_seconds == pytest.approx(0.004, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "spacing", "is_measured"), [(90, 1.5, True), (89, 1.5, False), (90, 0.9, False)]
)
def test_a_drift_needs_thirty_collectives_in_each_third_and_a_minute_between_them(
    count: int,
    spacing: float,
    is_measured: bool,
) -> None:
    time = np.arange(count, dtype=np.float64) * spacing
    assert drift_of(time, 1e-4 * time) == (pytest.approx(1e-4) if is_measured else None)


@pytest.mark.parametrize(("rate", "drift"), [(1e-6, 0.0), (1e-4, 1e-4)])
def test_a_drift_that_noise_could_make_counts_as_none(rate: float, drift: float) -> None:
    time = np.arange(300, dtype=np.float64)
    noise = 0.002 * (-1.0) ** time
    assert drift_of(time, rate * time + noise) == pytest.approx(drift, rel=0.05, abs=0)


def test_what_is_unknown_has_no_drift() -> None:
    time = np.arange(300, dtype=np.float64)
    assert drift_of(time, np.full(300, np.nan)) is None
