"""Milestones of a log: progress, step times, sizes and the end that the job itself reports."""

import json
import math
import re
from array import array
from dataclasses import dataclass, field
from typing import Any

from lockstep_records.joblogs.prefix import Origin, Stamp

# Bounds on memory, for hostile logs.
_MOST_STEPS = 8_000_000
_MOST_RANKS = 1_000_000
_MOST_COUNTED = 1 << 60
_PROGRESS_KEYS = frozenset(
    {"block_start", "block_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop",
     "eval_accuracy", "tracked_stats", "run_start", "run_stop", "train_loss"}
)  # fmt: skip
# Times in whole seconds err by up to a second: too much for shorter steps.
_COARSE_SECONDS = 5.0


@dataclass(slots=True)
class Milestones:
    """What the milestones of one log add up to so far.

    Attributes:
        init: time of the first rank's initialisation; ``num_inits`` of them precede the start.
        start: time at which training began.
        progress: time of the last step, evaluation or end; ``progress_order`` is its line.
        stop: time of the end that the job reports; ``status`` says how it ended.
        logged_seconds: durations of steps as the log states them.
        clocked_seconds: durations of steps between the times of two lines.
        block_means: how many of the logged durations are means over several steps.
        enqueued: collectives that each origin had entered.
        timeouts: number, kind and size of the collective that timed out, by origin.
    """

    init: Stamp | None = None
    num_inits: int = 0
    start: Stamp | None = None
    progress: Stamp | None = None
    progress_order: int = 0
    stop: Stamp | None = None
    stop_order: int = 0
    restart_order: int = -1
    status: str | None = None
    success: Stamp | None = None
    world: int | None = None
    logged_seconds: "array[float]" = field(default_factory=lambda: array("d"))
    logged_numbers: "array[int]" = field(default_factory=lambda: array("q"))
    block_means: int = 0
    clocked_seconds: "array[float]" = field(default_factory=lambda: array("d"))
    clocked_numbers: "array[int]" = field(default_factory=lambda: array("q"))
    last_step: int | None = None
    enqueued: dict[Origin, int] = field(default_factory=dict)
    timeouts: dict[Origin, tuple[int, str, str]] = field(default_factory=dict)
    _origin: Origin | None = None
    _previous: tuple[int, float] | None = None
    _has_fractions: bool = False

    def add_line(
        self, name: str, match: re.Match[str], origin: Origin, stamp: Stamp | None, *, order: int
    ) -> bool:
        """Adds a line; False when it is no milestone."""
        if name == "mllog":
            self._add_mllog(match[1], stamp, order)
        elif name == "progress":
            self._add_progress(match.groupdict(), origin, stamp, order)
        elif name == "restart":
            self.restart_order = order
        elif name == "success":
            self._note_stop("success", stamp, order)
        elif name == "world_size":
            self._add_world_size(next(int(value) for value in match.groups() if value))
        elif name == "nccl_state":
            if len(self.enqueued) < _MOST_RANKS:
                entered = int(match["enqueued"])
                self.enqueued[origin] = min(entered, self.enqueued.get(origin, entered))
        else:
            if name == "nccl_timeout" and len(self.timeouts) < _MOST_RANKS:
                self.timeouts.setdefault(origin, _collective_of(match["work"]))
            return False
        return True

    def _add_world_size(self, size: int) -> None:
        if 0 < size <= _MOST_RANKS:
            self.world = max(size, self.world or 0)

    def _note_stop(self, status: str, stamp: Stamp | None, order: int) -> None:
        self.status, self.stop, self.stop_order = status, stamp, order
        self._note_progress(stamp, order)

    def _note_progress(self, stamp: Stamp | None, order: int) -> None:
        self.progress, self.progress_order = stamp or self.progress, order

    def _add_mllog(self, text: str, stamp: Stamp | None, order: int) -> None:
        try:
            entry, _ = json.JSONDecoder().raw_decode(text)
            key = str(entry["key"])
            metadata = entry.get("metadata")
            metadata = metadata if isinstance(metadata, dict) else {}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        if key == "init_start":
            self.init, self.num_inits = self.init or stamp, self.num_inits + (self.start is None)
        elif key == "run_start":
            self.start = self.start or stamp
        if key in _PROGRESS_KEYS:
            self._note_progress(stamp, order)
        if key == "run_stop":
            status = str(metadata.get("status", "")).lower()
            status_text = "mlperf success" if status == "success" else status or "told no status"
            self._note_stop(status_text, stamp, order)
        elif key == "tracked_stats" and isinstance(entry.get("value"), dict):
            self._add_tracked_stats(entry["value"], metadata)

    def _add_tracked_stats(self, value: dict[str, Any], metadata: dict[str, Any]) -> None:
        seconds = value.get("train_step_time", value.get("step_time"))
        if not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds < 0:
            return
        if len(self.logged_seconds) >= _MOST_STEPS:
            return
        self.logged_seconds.append(float(seconds))
        step = metadata.get("step")
        if isinstance(step, int | float) and 0 <= step < _MOST_COUNTED:
            self.logged_numbers.append(int(step))
        else:
            self.logged_numbers.append(-1)
        self.block_means += not any("loss" in name for name in value)

    def _add_progress(
        self, fields: dict[str, str | None], origin: Origin, stamp: Stamp | None, order: int
    ) -> None:
        self.start = self.start or stamp
        if self.status == "success":  # reported too early: training goes on
            self.status = self.stop = None
        self._note_progress(stamp, order)
        number = fields.get("step")
        if number is None:
            return
        step = int(number)
        self._origin = self._origin or origin  # all ranks print alike: one of them counts
        if origin != self._origin:
            return
        seconds, milliseconds = fields.get("seconds"), fields.get("ms")
        took = _number(seconds) if seconds else _number(milliseconds, 1e-3)
        if took is not None and len(self.logged_seconds) < _MOST_STEPS:
            self.logged_seconds.append(took)
            self.logged_numbers.append(step)
        self._add_clocked_step(step, stamp)
        self.last_step = max(step, self.last_step or 0)

    def _add_clocked_step(self, step: int, stamp: Stamp | None) -> None:
        """Adds a step's duration by the clock, where lines hold both step and time."""
        if stamp is None:
            return
        previous, self._previous = self._previous, (step, stamp.seconds)
        self._has_fractions |= stamp.seconds % 1 != 0
        if previous is None or step <= previous[0] or stamp.seconds < previous[1]:
            return
        if len(self.clocked_seconds) < _MOST_STEPS:
            self.clocked_seconds.append((stamp.seconds - previous[1]) / (step - previous[0]))
            self.clocked_numbers.append(step)

    @property
    def steps(self) -> "tuple[array[float], array[int]]":
        """Durations in seconds and numbers of steps, as logged, else by the clock.

        By the clock only where it is fine enough: it has fractions of a second, or the median step
        takes five seconds at least.
        """
        if self.logged_seconds or not self.clocked_seconds:
            return self.logged_seconds, self.logged_numbers
        median = sorted(self.clocked_seconds)[len(self.clocked_seconds) // 2]
        if self._has_fractions or median >= _COARSE_SECONDS:
            return self.clocked_seconds, self.clocked_numbers
        return array("d"), array("q")


def _number(text: str | None, unit: float = 1.0) -> float | None:
    try:
        value = float(text.rstrip(".")) * unit if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _collective_of(text: str) -> tuple[int, str, str]:
    """Number, kind and size of the collective that timed out."""
    fields = dict(re.findall(r"(\w+)=([^,]+)", text))
    number = fields.get("SeqNum", "")
    return (
        int(number) if number.isdigit() else -1,
        fields.get("OpType", ""),
        fields.get("NumelIn", ""),
    )
