"""What each rank usually takes, and which ranks are slow from the first step to the last."""

from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix

# A rank that takes so many times as long as the faster quarter is slow for good, whatever the
# spread of the others: healthy hardware of one kind does not differ by that much.
_MAX_LEVEL = 1.4
# Less is slow for good only where a gap sets it apart from the others: one of 15 %, or of 25 %
# where few stand below, and twice as wide as all the others differ. Fleets that differ for good
# with nobody to blame rarely have such a gap: with levels normal by 5 %, fewer than one in 1,000
# fleets of ten; by 10 % one in 300.
_MIN_GAP, _MIN_GAP_OF_FEW, _FEW_BELOW, _MIN_BELOW = 0.14, 0.22, 6, 3  # gaps are logarithms
_GAPS_OF_SPREAD = 2.0
_LEAST_SPREAD = 0.01  # to which a level is known, as a logarithm
_LOW_QUANTILE = 0.25


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Levels:
    """Usual times of ranks.

    Attributes:
        seconds: what a rank usually takes; of one that is slow for good, what the faster ranks
            usually take: seconds, [ranks, 1].
        ratio: a rank's own low level to that of the faster ranks [ranks, 1].
        is_slow: whether it is slow for good [ranks].
        common: what all ranks take longer in a step, as a ratio of 1 or more [1, steps].
        excess: the logarithm of a time over the usual one times ``common`` [ranks, steps].
    """

    seconds: Matrix
    ratio: Matrix
    is_slow: Flags
    common: Matrix
    excess: Matrix


def measure_levels(seconds: Matrix, window_steps: int) -> Levels | None:
    """Usual times from the low quartile of windowed medians; None where one is not positive.

    Args:
        seconds: own times, [ranks, steps]; NaN where unknown.
        window_steps: steps of a window.
    """
    usable = seconds.shape[1] // window_steps * window_steps
    windows = seconds[:, :usable].reshape(len(seconds), -1, window_steps)
    # Up to three windows in four may be slow.
    low = nan_stats.quantile(nan_stats.median(windows, axis=2), _LOW_QUANTILE, axis=1)[:, None]
    if not (nan_stats.number(np.nanmin(low)) or 0) > 0:
        return None
    is_slow = _slow_for_good(low[:, 0])
    faster = low[~is_slow]
    reference = nan_stats.quantile(low, _LOW_QUANTILE)
    usual = np.where(is_slow[:, None], nan_stats.median(faster), low)
    relative = seconds / usual
    common = np.maximum(nan_stats.quantile(relative, _LOW_QUANTILE, axis=0)[None, :], 1.0)
    with np.errstate(divide="ignore"):
        excess = np.log(relative / common)
    return Levels(
        seconds=usual, ratio=low / reference, is_slow=is_slow, common=common, excess=excess
    )


def _slow_for_good(low: Matrix) -> Flags:
    """Which ranks stand apart from the faster ones [ranks], by their low levels in seconds."""
    is_slow: Flags = low >= _MAX_LEVEL * nan_stats.quantile(low, _LOW_QUANTILE)
    levels = np.log(low)
    order = np.argsort(levels)
    ordered = levels[order]
    # At most half of the ranks are slow: else the others are the fast ones.
    for below in range(max(_MIN_BELOW, -(-len(low) // 2)), len(low)):
        gap = ordered[below] - ordered[below - 1]
        spread = max(_LEAST_SPREAD, ordered[below - 1] - ordered[0])
        least = _MIN_GAP if below >= _FEW_BELOW else _MIN_GAP_OF_FEW
        if gap >= max(least, _GAPS_OF_SPREAD * spread):
            is_slow = is_slow | np.isin(np.arange(len(low)), order[below:])
            break
    return is_slow if not is_slow.all() else np.zeros_like(is_slow)
