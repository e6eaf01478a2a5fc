"""Milestones of a log: progress, sizes, and the end that the job itself reports."""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from lockstep_outcomes.joblogs.prefix import Origin, Stamp
from lockstep_outcomes.joblogs.steps import StepSeries, find_step_time

_PLANNED = re.compile(
    r"(?i)exiting program after (?P<minutes>\d{1,9}(?:\.\d{1,6})?)\.? minutes"
    r"|exiting program at iteration"
)
_RUNTIME = re.compile(r"train_runtime['\"]?\s*[:=]\s*(?P<seconds>\d{1,10}(?:\.\d+)?)\b(?!:)")
_SUCCESS = "success"
# Work that may follow the end of training, and whose own end makes the end stand again.
_CLOSING = {"checkpoint": "checkpoint_saved"}


@dataclass(slots=True)
class JobEnd:
    """The job's own report of its end.

    Attributes:
        status: how it ended; None when it reported nothing, or worked on afterwards.
        is_final: whether it is an explicit status, which no later line withdraws.
        planned_minutes: after which it ended itself as it was configured to.
        runtime_seconds: of the training, by the trainer's summary.
        withdrawn_by: kind of work that came after words of success.
    """

    status: str | None = None
    stop: Stamp | None = None
    order: int = 0
    is_final: bool = False
    planned_minutes: float | None = None
    runtime_seconds: float | None = None
    withdrawn_by: str | None = None
    _suspended: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the job reported how it ended."""
        return self.status is not None

    def succeed(self, text: str, stamp: Stamp | None, order: int) -> None:
        """Words of success, which any later work withdraws."""
        if self.is_final:
            return
        planned = _PLANNED.search(text)
        if planned is not None and planned["minutes"]:
            self.planned_minutes = float(planned["minutes"])
        runtime = _RUNTIME.search(text)
        self.runtime_seconds = float(runtime["seconds"]) if runtime else self.runtime_seconds
        self.status = "planned stop" if planned else _SUCCESS
        self.stop, self.order = stamp, order
        self.withdrawn_by = self._suspended = None

    def finish(self, status: str, stamp: Stamp | None, order: int) -> None:
        """An explicit final status, such as MLPerf's; the first one stands."""
        if not self.is_final or self.status != "mlperf success":
            named = status or "reported no status"
            self.status = "mlperf success" if status == _SUCCESS else named
            self.stop, self.order, self.is_final = stamp, order, True

    def work(self, name: str) -> None:
        """Work goes on; ``name`` as in ``Milestones.work``, or ``checkpoint_saved``."""
        if self.is_final:
            return
        if self._suspended is not None and _CLOSING.get(self._suspended) == name:
            self.status, self._suspended, self.withdrawn_by = _SUCCESS, None, None
        elif self.status is not None and name != "checkpoint_saved":
            self._suspended = name if name in _CLOSING else None
            self.status, self.withdrawn_by = None, name
        elif self._suspended is not None and name != self._suspended:
            self._suspended = None


# Bounds on memory, for hostile logs.
_MOST_RANKS = 1_000_000
_MOST_COUNTED = 1 << 60
_MOST_STEPS = 1 << 20
_MOST_DIGITS = 18
_MOST_UNTIMED_SECONDS = 3e8
_WORK_BY_KEY = {
    "block_start": "block", "block_stop": "block", "epoch_start": "epoch", "epoch_stop": "epoch",
    "eval_start": "evaluation", "eval_stop": "evaluation", "eval_accuracy": "evaluation",
    "tracked_stats": "step", "train_loss": "step", "throughput": "step", "run_start": "start",
    "run_stop": "stop",
}  # fmt: skip
_EVALUATION_BARS = re.compile(r"(?i)eval|valid|predict|test")
# Bars before the training and beside it.
_OTHER_BARS = re.compile(
    r"(?i)download|load|map|filter|tokeni|process|shard|generat|extract|fetch|sav|convert|index|pack|"
    r"compil|upload|group|creat|build|writ|read|scan|cach|sanity"
)


_WORK = frozenset(
    {"mllog", "progress", "bar", "success", "evaluation", "epoch", "checkpoint", "checkpoint_saved"}
)
# Of these alone nothing tells that a text is the log of a job.
_UNINFORMATIVE_KINDS = frozenset({"watcher", "clock_marker", "num_nodes"})


@dataclass(frozen=True, kw_only=True, slots=True)
class MilestoneLine:
    """A line of a known kind; its ``stamp`` is that of an earlier line where it has none."""

    name: str
    match: re.Match[str]
    origin: Origin
    stamp: Stamp | None
    own: Stamp | None
    order: int


@dataclass(slots=True)
class Milestones:
    """What the milestones of one log add up to so far.

    Attributes:
        init: time of the first rank's initialisation; ``num_inits`` of them precede the start.
        start: time at which training began; ``num_starts`` counts MLPerf's.
        progress: time of the last step, evaluation or end; ``progress_order`` is its line.
        untimed_seconds: stated durations of the steps since ``progress``, whose lines have no time.
        bounded: time of the first line after ``progress`` that has one.
        work: kind of the last work: start, step, block, epoch, evaluation, checkpoint or stop.
        worlds: the largest world size that each step of the launcher stated.
        timeouts: number, kind and size of the collective that timed out, by origin.
        watched: time of the scheduler's last line that calls the job running, and of its first one
            since the last progress.
    """

    init: Stamp | None = None
    num_inits: int = 0
    start: Stamp | None = None
    num_starts: int = 0
    progress: Stamp | None = None
    progress_order: int = 0
    untimed_seconds: float = 0.0
    is_untimed: bool = False
    bounded: Stamp | None = None
    work: str | None = None
    end: JobEnd = field(default_factory=JobEnd)
    restart_order: int = -1
    num_nodes: int | None = None
    worlds: list[int] = field(default_factory=lambda: [0])
    training_world: int | None = None
    steps: StepSeries = field(default_factory=StepSeries)
    enqueued: dict[Origin, int] = field(default_factory=dict)
    timeouts: dict[Origin, tuple[int, str, str]] = field(default_factory=dict)
    watched: tuple[Stamp, Stamp] | None = None
    num_lines: int = 0
    _has_begun: bool = False
    _origin: Origin | None = None

    def add_line(self, line: MilestoneLine) -> bool:
        """Adds a line; False when it is not a milestone."""
        name, match = line.name, line.match
        if name in _WORK:
            self._add_work_line(line)
        elif name == "restart":
            self.restart_order = line.order
        elif name == "world_size":
            self._add_world_size(next(int(value) for value in match.groups() if value))
        elif name == "num_nodes":
            self.num_nodes = max(int(match["nodes"] or 1), self.num_nodes or 0)
        elif name == "watcher":
            self._add_watcher(match[0], line.own)
        elif name == "nccl_state":
            if len(self.enqueued) < _MOST_RANKS:
                entered = int(match["enqueued"])
                self.enqueued[line.origin] = min(entered, self.enqueued.get(line.origin, entered))
        elif name != "clock_marker":
            if name == "nccl_timeout" and len(self.timeouts) < _MOST_RANKS:
                self.timeouts.setdefault(line.origin, _collective_of(match["work"]))
            return False
        self.num_lines += name not in _UNINFORMATIVE_KINDS
        return True

    def _add_work_line(self, line: MilestoneLine) -> None:
        if line.name == "mllog":
            self._add_mllog(line)
        elif line.name == "progress":
            self._add_progress(line)
        elif line.name == "bar":
            self._add_bar(line)
        elif line.name == "success":
            self.end.succeed(line.match.string[line.match.start() :], line.stamp, line.order)
            self._note_progress("stop", line)
        else:
            self._add_work(line.name, line)

    def bound(self, stamp: Stamp | None) -> None:
        """A line after the last progress has a time, before which that was."""
        if self.bounded is None and stamp is not None and stamp is not self.progress:
            self.bounded = stamp

    def begin_launcher_step(self) -> None:
        """The launcher starts another step, whose sizes are its own."""
        if len(self.worlds) < _MOST_STEPS and self.worlds[-1]:
            self.worlds.append(0)

    @property
    def world(self) -> int:
        """Ranks as stated by the step that trains, else the most of any; 0 where none states it."""
        return self.training_world or max(self.worlds)

    def _add_world_size(self, size: int) -> None:
        if 0 < size <= _MOST_RANKS:
            self.worlds[-1] = max(size, self.worlds[-1])
            if self.work is not None:
                self.training_world = self.worlds[-1]

    def _add_watcher(self, text: str, own: Stamp | None) -> None:
        if own is not None and re.search(r"(?i)\b(?:not|was) ", text) is None:
            first = self.watched[0] if self.watched is not None else own
            self.watched = (first, own)

    def _begin(self, stamp: Stamp | None) -> None:
        """Training begins with its first sign; where that has no time, the start is unknown."""
        if not self._has_begun:
            self._has_begun, self.start = True, stamp

    def _note_progress(self, work: str, line: MilestoneLine, took: float = 0.0) -> None:
        own, stamp = line.own, line.stamp
        self.is_untimed = own is None
        if own is None and self.progress is not None:
            # Its line has no time: the step took what it states, since the last line with one.
            self.untimed_seconds = min(self.untimed_seconds + took, _MOST_UNTIMED_SECONDS)
            if stamp is not None and stamp.zoned == self.progress.zoned:
                gained = max(0.0, stamp.seconds - self.progress.seconds)
                self.untimed_seconds = max(0.0, self.untimed_seconds - gained)
                self.progress = max(self.progress, stamp, key=lambda each: each.seconds)
        else:
            self.progress, self.untimed_seconds = own or stamp, took if own is None else 0.0
        self.progress_order, self.work = line.order, work
        self.watched = self.bounded = None
        self.training_world = self.worlds[-1] or self.training_world

    def _add_work(self, name: str, line: MilestoneLine) -> None:
        work = "checkpoint" if name.startswith("checkpoint") else name
        self._begin(line.stamp)
        self.end.work(name)
        self._note_progress(work, line)
        fields = line.match.groupdict() if name == line.name else {}
        number = fields.get("step") or fields.get("step2") or fields.get("step3")
        if number is not None and int(number) < _MOST_COUNTED:
            self.steps.last_number = max(int(number), self.steps.last_number or 0)

    def _add_mllog(self, line: MilestoneLine) -> None:
        try:
            entry, _ = json.JSONDecoder().raw_decode(line.match[1])
            key = str(entry["key"])
            metadata = entry.get("metadata")
            metadata = metadata if isinstance(metadata, dict) else {}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        stamp = line.stamp
        if key == "init_start":
            self.init, self.num_inits = self.init or stamp, self.num_inits + (self.start is None)
        elif key == "run_start":
            # MLPerf's own line counts, whatever looked like progress before it.
            self.start = stamp if self.num_starts == 0 else self.start
            self._has_begun = True
            self.num_starts += 1
        work = _WORK_BY_KEY.get(key)
        if work is not None and not (self.end.is_final and key != "run_stop"):
            if key not in {"run_start", "run_stop"}:
                self.end.work(work)
            self._note_progress(work, line)
        if key == "run_stop":
            self.end.finish(str(metadata.get("status", "")).lower(), stamp, line.order)
        elif key == "tracked_stats" and isinstance(entry.get("value"), dict):
            self._add_tracked_stats(entry["value"], metadata)
        elif key == "train_loss":
            samples = metadata.get("samples_count", metadata.get("step", metadata.get("epoch_num")))
            is_plain = isinstance(samples, int | float | str)
            self.steps.add_loss(samples if is_plain else None, line.own)

    def _add_tracked_stats(self, value: dict[str, Any], metadata: dict[str, Any]) -> None:
        seconds = value.get("train_step_time", value.get("step_time"))
        if not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds < 0:
            return
        step = metadata.get("step")
        is_counted = isinstance(step, int | float) and 0 <= step < _MOST_COUNTED
        is_block = not any("loss" in name for name in value)
        number = int(step) if is_counted and step is not None else None
        self.steps.add_stated(number, float(seconds), is_block=is_block)

    def _add_progress(self, line: MilestoneLine) -> None:
        self._begin(line.stamp)
        self.end.work("step")
        number = line.match.groupdict().get("step")
        took = find_step_time(line.match.string)
        # All ranks print alike: one of them counts.
        self._origin = self._origin or line.origin
        is_counted = line.origin == self._origin and number is not None
        spent = 0.0
        if took is not None and is_counted:
            steps = int(number or 0) - (self.steps.last_number or int(number or 0) - 1)
            spent = took.seconds * max(0, min(1, steps) if took.is_block else steps)
        self._note_progress("step", line, spent)
        if is_counted and number is not None and int(number) < _MOST_COUNTED:
            self.steps.add(int(number), took, None if line.own is None else line.own.seconds)

    def _add_bar(self, line: MilestoneLine) -> None:
        match = line.match
        if _OTHER_BARS.search(match["what"]):
            return
        if _EVALUATION_BARS.search(match["what"]):
            self._add_work("evaluation", line)
            return
        self._begin(line.stamp)
        self.end.work("step")
        self._note_progress("step", line)
        self._origin = self._origin or line.origin
        if line.origin == self._origin:
            own = line.own
            seconds = own.seconds if own is not None else _elapsed_seconds(match["elapsed"])
            self.steps.add(int(match["step"]), find_step_time(match.string), seconds)


def _elapsed_seconds(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60 + float(part or 0)
    return seconds


def _collective_of(text: str) -> tuple[int, str, str]:
    fields = dict(re.findall(r"(\w+)=([^,]+)", text))
    number = fields.get("SeqNum", "")
    return (
        int(number) if number.isdecimal() and len(number) <= _MOST_DIGITS else -1,
        fields.get("OpType", ""),
        fields.get("NumelIn", ""),
    )
