"""Judges unusual steps; called only when one comparison of the hot path says so.

It finds values that are not finite, spikes and divergence of the loss, steps that an earlier
attempt has done already, and steps that hung.
"""

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.monitor.periodic import PeriodicStats
from lockstep.recorder.phases import FLAG
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_outcomes.progress.goodput import REWORK_PHASES
from lockstep_outcomes.progress.hangs import (
    HANG_TIMEOUT_SECONDS,
    hang_limit_seconds,
    median_step_seconds,
)
from lockstep_records.page.layout import PERIODIC, SLOT
from lockstep_records.page.writer import PageWriter

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
    """Finds spikes of the loss, and a loss that has turned round and rises.

    The median and the median absolute deviation (MAD) of the last losses are computed anew every
    so many steps; in between a step costs one comparison. A new level is accepted after a while,
    so that no flag stays for ever.

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


_WORK_PHASES = tuple(
    (index, phase) for index, phase in enumerate(STEP_PHASES) if phase in REWORK_PHASES
)
_SPIKING = PERIODIC.word("anomaly_now")
_DIVERGING = _SPIKING + 1
assert PERIODIC.items["anomaly_now"] == ("spike", "divergence")
_BUCKETS = slice(_FIRST := SLOT.word("step_buckets"), _FIRST + len(SLOT.items["step_buckets"]))
_STEP_SECONDS_SUM = SLOT.word("step_seconds_sum")


class AnomalyDetector:
    """Judges steps, and counts what it finds in the page's periodic slot.

    Args:
        hang_timeout_seconds: a shorter phase does not count as a hang.

    Attributes:
        judge: of the loss.
        usual_seconds: a step up to that long is not judged; below zero, so that every step is,
            while work of an earlier attempt is done again.
    """

    def __init__(
        self,
        page: PageWriter,
        periodic: PeriodicStats,
        hang_timeout_seconds: float = HANG_TIMEOUT_SECONDS,
    ) -> None:
        self._page, self._periodic = page, periodic
        self._hang_timeout_seconds = hang_timeout_seconds
        self.judge = LossJudge()
        self._hang_seconds = math.inf  # the first step may compile for long
        self.usual_seconds = -1.0 if periodic.step_before >= 0 else math.inf

    @property
    def lasting(self) -> int:
        """Flags of every step while a spike or a divergence lasts."""
        judge = self.judge
        return judge.spiking * FLAG["loss_spike"] | judge.diverging * FLAG["divergence"]

    def loss(self, loss: float) -> int:
        """Flags of a step whose loss is out of the judge's bounds."""
        if not math.isfinite(loss):
            self._periodic.slots.count("nonfinite", "loss")
            return FLAG["nonfinite"]
        self.judge.losses.append(loss)
        if self.judge.is_anomalous(loss):
            self._periodic.slots.count("anomalies", "spike")
        self._write_ongoing()
        return self.lasting

    def norm(self, norm: float) -> int:
        """Flags of a step whose gradient norm no row can hold."""
        if math.isfinite(norm):
            return 0
        self._periodic.slots.count("nonfinite", "gradient_norm")
        return FLAG["nonfinite"]

    def step(self, number: int, seconds: Sequence[float]) -> int:
        """Flags of a step that took long or was done before, by the seconds of its phases."""
        flags, add = 0, self._periodic.slots.add
        hung = [index for index, _ in _WORK_PHASES if seconds[index] > self._hang_seconds]
        for index in hung:
            add("hang_seconds", seconds[index], STEP_PHASES[index])
            flags = FLAG["hang"]
        if number > self._periodic.step_before:
            self.usual_seconds = self._hang_seconds
            return flags
        for index, phase in _WORK_PHASES:
            if index not in hung:  # one second is either lost to a hang or to rework, never both
                add("rework_seconds", seconds[index], phase)
        return flags | FLAG["rework"]

    def update_bounds(self) -> None:
        """Computes the bounds anew; called after steps 1, 2, 4 up to 64, then every 67."""
        page = self._page
        median = median_step_seconds(page.words[_BUCKETS].tolist(), page.floats[_STEP_SECONDS_SUM])
        self._hang_seconds = hang_limit_seconds(median, self._hang_timeout_seconds)
        if self.usual_seconds >= 0:
            self.usual_seconds = self._hang_seconds
        if self.judge.update_bounds():
            self._periodic.slots.count("anomalies", "divergence")
        self._write_ongoing()

    def _write_ongoing(self) -> None:
        words = self._periodic.slots.words
        words[_SPIKING], words[_DIVERGING] = self.judge.spiking, self.judge.diverging
