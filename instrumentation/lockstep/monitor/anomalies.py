"""Judges unusual steps; called only when one comparison of the hot path says so.

It finds values that are not finite, spikes and divergence of the loss, steps that an earlier
attempt has done already, and steps that hung.
"""

import math
from collections.abc import Sequence

from lockstep.monitor.divergence import LossJudge
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
