"""Judges the loss in the process: a spike, and a loss that has turned round and rises.

Robust and bounded: the median and the median absolute deviation of the last losses, made anew every
so many steps and compared with one number in between. A new level is accepted after a while, so
that no flag stays for ever.
"""

import math
import sys
from collections import deque
from dataclasses import dataclass

_MAD_TO_SIGMA = 1.4826
_LARGEST = sys.float_info.max  # an infinite loss is above it


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """What is a spike, and what is a divergence.

    Args:
        window: losses that are judged by.
        every: steps after which the window is looked at anew.
        begin_sigmas: above the median at which a spike begins, or a median above the lowest one at
            which a divergence begins.
        end_sigmas: below which it is over.
        floor_ratio: of the median, the least that one sigma is taken for: below it is rounding.
        remembered: medians among which the lowest is looked for; a level older than that is
            forgotten.
    """

    window: int = 64
    every: int = 64
    begin_sigmas: float = 8.0
    end_sigmas: float = 4.0
    floor_ratio: float = 0.005
    remembered: int = 16


@dataclass(frozen=True, slots=True)
class _Level:
    median: float
    sigma: float


class LossJudge:
    """Told every loss; the caller asks ``is_unusual`` only where ``floor < loss <= bound`` fails.

    Attributes:
        losses: the window; the caller appends each finite loss.
        floor: a loss down to it ends the spike that lasts.
        bound: a loss above it is one to look into.
        spiking: whether a spike lasts.
        diverging: whether a divergence lasts.
    """

    def __init__(self, thresholds: Thresholds = Thresholds()) -> None:
        self._limits = thresholds
        self.losses: deque[float] = deque(maxlen=thresholds.window)
        self._levels: deque[_Level] = deque(maxlen=thresholds.remembered)
        self._begin = self._end = _LARGEST
        self.floor, self.bound = -math.inf, _LARGEST
        self.spiking = self.diverging = False

    def is_anomalous(self, loss: float) -> bool:
        """Looks into a finite loss that is out of bounds; True where a spike begins with it."""
        began = not self.spiking and loss > self._begin
        self.spiking = began or (self.spiking and loss > self._end)
        self._set_bound()
        return began

    def look(self) -> bool:
        """To be called every ``every`` steps; True where a divergence begins.

        It begins where the median of a whole window lies far above the lowest one before.
        """
        limits = self._limits
        if len(self.losses) < limits.window:
            return False
        level = self._level()
        self._begin = level.median + limits.begin_sigmas * level.sigma
        self._end = level.median + limits.end_sigmas * level.sigma
        lowest = min(self._levels, key=lambda one: one.median, default=level)
        sigma = max(lowest.sigma, limits.floor_ratio * abs(lowest.median))
        above = (level.median - lowest.median) / sigma if sigma else 0.0
        began = not self.diverging and above > limits.begin_sigmas
        self.diverging = began or (self.diverging and above > limits.end_sigmas)
        self._levels.append(level)
        self._set_bound()
        return began

    def _level(self) -> _Level:
        ordered = sorted(self.losses)
        middle = len(ordered) // 2
        median = ordered[middle]
        deviation = sorted(abs(loss - median) for loss in ordered)[middle]
        floor = self._limits.floor_ratio * abs(median)
        return _Level(median, max(_MAD_TO_SIGMA * deviation, floor))

    def _set_bound(self) -> None:
        self.floor = self._end if self.spiking else -math.inf
        self.bound = _LARGEST if self.spiking else self._begin
