"""Judges the loss in the process: a spike, and a loss that has turned round and rises.

The median and the median absolute deviation (MAD) of the last losses are computed anew every so
many steps; in between a step costs one comparison. A new level is accepted after a while, so that
no flag stays for ever.
"""

import math
import sys
from collections import deque
from dataclasses import dataclass

# Null hypothesis of both tests: the loss scatters around a level that stays or falls. Median and
# MAD assume of the noise only that fewer than half of the window are outliers. 1.4826 = 1 / 0.6745
# makes the MAD the standard deviation of a normal distribution.
_MAD_TO_SIGMA = 1.4826
_LARGEST = sys.float_info.max  # an infinite loss is above it
WINDOW = 64  # losses in the median
# A spike begins that far above the median; a divergence where a median lies that far above the
# lowest one. With normal noise 8 sigma never come by chance (6e-16 a step); the margin is for
# losses with heavier tails. Below half of it both are over, so that neither flickers.
_BEGIN_SIGMAS, _END_SIGMAS = 8.0, 4.0
_FLOOR_RATIO = 0.005  # least sigma, as a ratio of the median: below it is rounding
_REMEMBERED = 16  # medians among which the lowest is taken; an older level is forgotten


@dataclass(frozen=True, slots=True)
class _Level:
    median: float
    sigma: float


class LossJudge:
    """Finds spikes and divergences.

    The caller appends each finite loss to ``losses``, and calls ``is_anomalous`` only where
    ``floor < loss <= bound`` fails.

    Attributes:
        floor: a loss down to it ends the spike that lasts.
        bound: a loss above it has to be judged.
    """

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self._levels: deque[_Level] = deque(maxlen=_REMEMBERED)
        self._begin = self._end = _LARGEST
        self.floor, self.bound = -math.inf, _LARGEST
        self.spiking = self.diverging = False

    def is_anomalous(self, loss: float) -> bool:
        """Judges a finite loss that is out of bounds; True where a spike begins with it."""
        began = not self.spiking and loss > self._begin
        self.spiking = began or (self.spiking and loss > self._end)
        self._set_bound()
        return began

    def update_bounds(self) -> bool:
        """Computes the bounds anew, now and then; True where a divergence begins.

        It begins where the median of a whole window lies far above the lowest one before.
        """
        if len(self.losses) < WINDOW:
            return False
        level = self._level()
        self._begin = level.median + _BEGIN_SIGMAS * level.sigma
        self._end = level.median + _END_SIGMAS * level.sigma
        lowest = min(self._levels, key=lambda past: past.median, default=level)
        sigma = max(lowest.sigma, _FLOOR_RATIO * abs(lowest.median))
        above = (level.median - lowest.median) / sigma if sigma else 0.0
        began = not self.diverging and above > _BEGIN_SIGMAS
        self.diverging = began or (self.diverging and above > _END_SIGMAS)
        self._levels.append(level)
        self._set_bound()
        return began

    def _level(self) -> _Level:
        ordered = sorted(self.losses)
        center = len(ordered) // 2
        median = ordered[center]
        deviation = sorted(abs(loss - median) for loss in ordered)[center]
        floor = _FLOOR_RATIO * abs(median)
        return _Level(median, max(_MAD_TO_SIGMA * deviation, floor))

    def _set_bound(self) -> None:
        self.floor = self._end if self.spiking else -math.inf
        self.bound = _LARGEST if self.spiking else self._begin
