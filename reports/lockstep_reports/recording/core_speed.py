"""How much longer work took because its core did less: beside another guest, or at a lower clock.

A rank times the same calculation again and again. Where that takes longer, so does all work on the
core, about in proportion; a rank with more work of its own calibrates as the others do.
"""

from collections.abc import Sequence

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix

# A calculation of microseconds is a sample: another thread on the same core comes and goes.
_SAMPLES = 11
_BEST_QUANTILE = 0.1


def slow_core_seconds(
    calibrations: Matrix, core_seconds: Matrix, nodes: Sequence[str]
) -> Matrix | None:
    """Time beyond what the same work takes on the node's cores at their best: seconds.

    Nodes have cores of their own kind, so that each is compared with itself.

    Args:
        calibrations: time of the calculation [ranks, steps]; NaN in steps without.
        core_seconds: time that each rank had a core in its own work, in the same way.
        nodes: node of each rank [ranks].

    Returns:
        [ranks, steps], NaN where unknown; None where it is unknown everywhere.
    """
    usual = np.array([_smooth(row) for row in calibrations])
    if np.isnan(usual).all():
        return None
    best = np.full((len(usual), 1), np.nan)
    for node in set(nodes):
        rows = [row for row, of_row in enumerate(nodes) if of_row == node]
        best[rows] = nan_stats.quantile(usual[rows], _BEST_QUANTILE)
    slow: Matrix = core_seconds * np.maximum(0.0, 1 - best / usual)
    return slow


def _smooth(calibrations: Matrix) -> Matrix:
    """The mean of the samples around each step [steps]; NaN throughout where there are few."""
    columns = np.flatnonzero(~np.isnan(calibrations))
    if len(columns) < _SAMPLES:
        return np.full(len(calibrations), np.nan)
    mean = np.convolve(calibrations[columns], np.full(_SAMPLES, 1 / _SAMPLES), "valid")
    half = _SAMPLES // 2
    return np.interp(np.arange(len(calibrations)), columns[half : half + len(mean)], mean)
