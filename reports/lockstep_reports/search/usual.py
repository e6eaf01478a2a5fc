"""What is usual for a rank, beside which its own changes show."""

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix

# A rank's usual is its lower quartile, so that up to three steps in four may be slow.
_USUAL_QUANTILE = 0.25
# Share of a rank's steps; of fewer that are left nobody knows what is usual.
_MOST_SLOW = 0.9
# Independence is a property of the noise, and this many rows estimate it well enough.
_MAX_SAMPLED_ROWS = 1024


def beyond_usual(own_work: Matrix, slow: Flags | None = None) -> Matrix:
    """Own work beyond what is usual for the rank: seconds, [ranks, steps].

    Args:
        own_work: seconds, [ranks, steps].
        slow: cells that are not usual [ranks, steps]; a rank with few others counts whole.
    """
    if slow is not None:
        is_long = slow.mean(axis=1, keepdims=True) > _MOST_SLOW
        usual_work = np.where(slow & ~is_long, np.nan, own_work)
    else:
        usual_work = own_work
    usual = nan_stats.quantile(usual_work, _USUAL_QUANTILE, axis=1)
    beyond: Matrix = own_work - usual[:, None]
    return beyond


def sample_rows(values: Matrix) -> Matrix:
    """Every n-th row of [rows, steps], at most ``_MAX_SAMPLED_ROWS`` of them."""
    return values[:: 1 + len(values) // _MAX_SAMPLED_ROWS]
