"""Progress, step times, sizes and told ends: what the marks in a log add up to."""

import json
import math
import re
from array import array
from dataclasses import dataclass, field
from typing import Any

from lockstep_records.joblogs.prefix import Stamp, Who

_MOST_STEPS = 8_000_000
_MOST_RANKS = 1_000_000
_MOST_COUNTED = 1 << 60
_PROGRESS_KEYS = frozenset(
    {"block_start", "block_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop",
     "eval_accuracy", "tracked_stats", "run_start", "run_stop", "train_loss"}
)  # fmt: skip
_COARSE_SECONDS = 5.0


@dataclass(slots=True)
class Marks:
    """What one log's marks have told so far."""

    init: Stamp | None = None
    inits: int = 0
    start: Stamp | None = None
    progress: Stamp | None = None
    progress_order: int = 0
    stop: Stamp | None = None
    stop_order: int = 0
    restart_order: int = -1
    status: str | None = None
    success: Stamp | None = None
    world: int | None = None
    told_seconds: "array[float]" = field(default_factory=lambda: array("d"))
    told_numbers: "array[int]" = field(default_factory=lambda: array("q"))
    means: int = 0
    seen_seconds: "array[float]" = field(default_factory=lambda: array("d"))
    seen_numbers: "array[int]" = field(default_factory=lambda: array("q"))
    last_step: int | None = None
    enqueued: dict[Who, int] = field(default_factory=dict)
    timeouts: dict[Who, tuple[int, str, str]] = field(default_factory=dict)
    _voice: Who | None = None
    _before: tuple[int, float] | None = None
    _fractions: bool = False

    def take(
        self, name: str, match: re.Match[str], who: Who, stamp: Stamp | None, *, order: int
    ) -> bool:
        """Takes note of a mark; False when the line is none."""
        if name == "mllog":
            self._mllog(match[1], stamp, order)
        elif name == "progress":
            self._progress(match.groupdict(), who, stamp, order)
        elif name == "restart":
            self.restart_order = order
        elif name == "success":
            self._stopped("success", stamp, order)
        elif name == "world_size":
            self._world(next(int(value) for value in match.groups() if value))
        elif name == "nccl_state":
            if len(self.enqueued) < _MOST_RANKS:
                entered = int(match["enqueued"])
                self.enqueued[who] = min(entered, self.enqueued.get(who, entered))
        else:
            if name == "nccl_timeout" and len(self.timeouts) < _MOST_RANKS:
                self.timeouts.setdefault(who, _work(match["work"]))
            return False
        return True

    def _world(self, size: int) -> None:
        if 0 < size <= _MOST_RANKS:
            self.world = max(size, self.world or 0)

    def _stopped(self, status: str, stamp: Stamp | None, order: int) -> None:
        self.status, self.stop, self.stop_order = status, stamp, order
        self._moved(stamp, order)

    def _moved(self, stamp: Stamp | None, order: int) -> None:
        self.progress, self.progress_order = stamp or self.progress, order

    def _mllog(self, text: str, stamp: Stamp | None, order: int) -> None:
        try:
            told, _ = json.JSONDecoder().raw_decode(text)
            key = str(told["key"])
            metadata = told.get("metadata")
            metadata = metadata if isinstance(metadata, dict) else {}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        if key == "init_start":
            self.init, self.inits = self.init or stamp, self.inits + (self.start is None)
        elif key == "run_start":
            self.start = self.start or stamp
        if key in _PROGRESS_KEYS:
            self._moved(stamp, order)
        if key == "run_stop":
            status = str(metadata.get("status", "")).lower()
            told_status = "mlperf success" if status == "success" else status or "told no status"
            self._stopped(told_status, stamp, order)
        elif key == "tracked_stats" and isinstance(told.get("value"), dict):
            self._tracked(told["value"], metadata)

    def _tracked(self, value: dict[str, Any], metadata: dict[str, Any]) -> None:
        seconds = value.get("train_step_time", value.get("step_time"))
        if not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds < 0:
            return
        if len(self.told_seconds) >= _MOST_STEPS:
            return
        self.told_seconds.append(float(seconds))
        step = metadata.get("step")
        if isinstance(step, int | float) and 0 <= step < _MOST_COUNTED:
            self.told_numbers.append(int(step))
        else:
            self.told_numbers.append(-1)
        self.means += not any("loss" in name for name in value)

    def _progress(
        self, told: dict[str, str | None], who: Who, stamp: Stamp | None, order: int
    ) -> None:
        self.start = self.start or stamp
        if self.status == "success":  # told too early: it goes on
            self.status = self.stop = None
        self._moved(stamp, order)
        number = told.get("step")
        if number is None:
            return
        step = int(number)
        self._voice = self._voice or who
        if who != self._voice:
            return
        seconds, milliseconds = told.get("seconds"), told.get("ms")
        took = _number(seconds) if seconds else _number(milliseconds, 1e-3)
        if took is not None and len(self.told_seconds) < _MOST_STEPS:
            self.told_seconds.append(took)
            self.told_numbers.append(step)
        self._between(step, stamp)
        self.last_step = max(step, self.last_step or 0)

    def _between(self, step: int, stamp: Stamp | None) -> None:
        """A step's time by the clock, where lines tell both."""
        if stamp is None:
            return
        before, self._before = self._before, (step, stamp.seconds)
        self._fractions |= stamp.seconds % 1 != 0
        if before is None or step <= before[0] or stamp.seconds < before[1]:
            return
        if len(self.seen_seconds) < _MOST_STEPS:
            self.seen_seconds.append((stamp.seconds - before[1]) / (step - before[0]))
            self.seen_numbers.append(step)

    @property
    def steps(self) -> "tuple[array[float], array[int]]":
        """Told times of steps, else those by the clock where it is fine enough."""
        if self.told_seconds or not self.seen_seconds:
            return self.told_seconds, self.told_numbers
        middle = sorted(self.seen_seconds)[len(self.seen_seconds) // 2]
        if self._fractions or middle >= _COARSE_SECONDS:
            return self.seen_seconds, self.seen_numbers
        return array("d"), array("q")


def _number(text: str | None, unit: float = 1.0) -> float | None:
    try:
        value = float(text.rstrip(".")) * unit if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _work(text: str) -> tuple[int, str, str]:
    """Number, kind and size of the collective that timed out."""
    fields = dict(re.findall(r"(\w+)=([^,]+)", text))
    number = fields.get("SeqNum", "")
    return (
        int(number) if number.isdigit() else -1,
        fields.get("OpType", ""),
        fields.get("NumelIn", ""),
    )
