"""Quantiles from counts of steps by duration."""

import numpy as np
import pytest

from lockstep_reports.recording.steps import DurationHistogram

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("counts", "share", "quantile"),
    [
        ([[0], [10], [10]], 0.5, 1.5),
        ([[4], [8], [8]], 0.5, 1.0),
        ([[8], [8], [8]], 0.25, 0.25),
        ([[1, 7], [2, 8], [2, 8]], 0.8, 1.0),
        ([[1, NAN], [2, NAN], [2, NAN]], 1.0, 2.0),
        ([[1], [1], [100]], 0.95, None),
        ([[0], [0], [0]], 0.95, None),
        ([[NAN], [NAN], [NAN]], 0.95, None),
    ],
)
def test_a_quantile_lies_within_its_bucket_and_never_above_the_last_bound(
    counts: list[list[float]], share: float, quantile: float | None
) -> None:
    durations = DurationHistogram(bounds=np.array([1.0, 2.0, INF]), counts=np.array(counts))
    assert durations.quantile(share) == quantile
