"""Callbacks of the recorder, each for one comparison of the hot path that something is due.

About once a second it asks for what ``periodic`` does, and besides for each step that is unusual.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from lockstep.guard import Parts, guarded
from lockstep.monitor.anomalies import AnomalyDetector
from lockstep.monitor.first_steps import FirstSteps
from lockstep.monitor.periodic import EVERY_NS, PeriodicStats
from lockstep.recorder.device import LateNumbers, LateRow
from lockstep.recorder.interface import MAX_RUN_QUEUES, StepRecorder
from lockstep.recorder.native import new_recorder
from lockstep.recorder.phases import FLAG
from lockstep.telemetry.traces import Traces
from lockstep_records.page.layout import LATE_LOSSES, PERIODIC
from lockstep_records.page.writer import PageWriter

_AUTOGRAD = b"pt_autograd_"
_BUSY_NS = 10_000_000
_FIRST_PAUSE_NS = 1_000_000_000
_LONGEST_PAUSE_NS = 64_000_000_000


class LoopThreads:
    """Open files of the loop's threads; called from the loop's thread."""

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._descriptors: dict[int, int] = {}  # by thread
        self._due_ns, self._pause_ns = 0, _FIRST_PAUSE_NS
        self._loop = 0

    def poll(self, now_ns: int) -> tuple[int, ...] | None:
        """Descriptors of their ``schedstat``; None where they are those of the call before."""
        loop = threading.get_native_id()
        if loop == self._loop and now_ns < self._due_ns:
            return None
        # Listing hundreds of threads takes a millisecond, and new ones come early if ever.
        self._due_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)
        self._loop = loop
        threads = (loop, *self._autograd_threads(loop))[:MAX_RUN_QUEUES]
        if threads == tuple(self._descriptors):
            return None
        self.close()
        for thread in threads:
            descriptor = _open(self._tasks / str(thread) / "schedstat")
            if descriptor is not None:
                self._descriptors[thread] = descriptor
        return tuple(self._descriptors.values()) if loop in self._descriptors else ()

    def _autograd_threads(self, loop: int) -> list[int]:
        with suppress(OSError):
            folders = [folder for folder in self._tasks.iterdir() if _runs_backward(folder)]
            return sorted({int(folder.name) for folder in folders} - {loop})
        return []

    def close(self) -> None:
        """Closes the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}


def _runs_backward(thread: Path) -> bool:
    """Whether a thread of autograd has done work; there is one for each device, used or not."""
    try:
        name = (thread / "comm").read_bytes()
        return name.startswith(_AUTOGRAD) and _core_ns(thread / "schedstat") >= _BUSY_NS
    except (OSError, ValueError):
        return False  # it has ended meanwhile


def _core_ns(schedstat: Path) -> int:
    return int(schedstat.read_bytes().partition(b" ")[0])


def _open(schedstat: Path) -> int | None:
    """A descriptor of the file; None where the kernel counts nothing."""
    try:
        # A kernel without these statistics has the file, full of zeros; these threads have run.
        if _core_ns(schedstat) > 0:
            return os.open(schedstat, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        pass
    return None


_LATE = PERIODIC.word("late_losses")
_NS = 1e-9
_MEASURE_EVERY = 67  # steps; a prime, so that sampled steps are measured no more often than others


class StepObserver(Protocol):
    """Asked at the ends of steps that it woke for by ``wake_step`` and ``wake_ns``."""

    def step_ended(self, now_ns: int, step: int) -> None:
        """A step has ended; monotonic nanoseconds."""

    def stop(self) -> None:
        """There are no more steps."""


class NoopObserver:
    """Observes nothing."""

    def _do_nothing(self, *_: Any) -> None:
        """Takes any call."""

    step_ended = stop = _do_nothing


class StepCallbacks:
    """Judges steps, measures our own cost and wakes the observer; the recorder calls it.

    Args:
        periodic: does what is due about once a second.
        traces: writes spans of slow steps; without it no step is slow.
        step_while_off: takes steps that the recorder gets while it is off.

    Attributes:
        observer: called at the ends of the steps that it woke for.
        first_steps: finds what is not seen of the loop.
    """

    def __init__(
        self,
        page: PageWriter,
        periodic: PeriodicStats,
        traces: Traces | None,
        anomalies: AnomalyDetector,
        *,
        fail: Callable[[Exception], None],
        step_while_off: Callable[[int | None], None],
        parts: Parts,
    ) -> None:
        self._page, self._periodic, self._traces, self._parts = page, periodic, traces, parts
        self.fail, self.step_while_off = fail, step_while_off
        self._anomalies, self._judge = anomalies, anomalies.judge
        self.first_steps = FirstSteps(page)
        self.observer: StepObserver = NoopObserver()
        self._threads = LoopThreads()
        self.recorder: StepRecorder = new_recorder(page, self)
        self._set_bounds()
        parts.call_when_off("anomalies", self._judge_nothing)
        self.recorder.slow_seconds = self._slow_seconds(time.monotonic_ns())

    def tick(self, now_ns: int) -> int:
        """Once a second: does what is seldom done; returns the moment of the next time."""
        self._run_periodic(now_ns)
        return now_ns + EVERY_NS

    @guarded
    def _run_periodic(self, now_ns: int) -> None:
        self._periodic.tick(now_ns)
        descriptors = self._threads.poll(now_ns)
        if descriptors is not None:
            self.recorder.watch_run_queue(descriptors)
        self.recorder.watch_stops()

    def close(self) -> None:
        """Closes what was opened."""
        self.recorder.watch_run_queue(())
        self._threads.close()

    def inspect_loss(self, loss: float) -> int:
        """Judges a loss that is out of bounds; returns the step's flags."""
        return self._parts.run("anomalies", self._inspect_loss, loss) or 0

    def _inspect_loss(self, loss: float) -> int:
        # The recorder keeps losses that are within bounds; the judge needs them in their order.
        self._judge.losses.extend(self.recorder.take_losses())
        flags = self._anomalies.loss(loss)
        self._set_loss_bounds()
        return flags

    def late_numbers(self, rows: Sequence[LateRow]) -> bool:
        """Takes in numbers of steps that are over; returns whether more are wanted."""
        self._parts.run("device_numbers", self._take_late, rows)
        return not self._parts.is_off("device_numbers")

    def _take_late(self, late: Sequence[LateRow]) -> None:
        rows = [LateNumbers(*row) for row in late]
        # Their rows are written and read already: only state and counters can change.
        state, slots, judge = self._page.now, self._periodic.slots, self._judge
        for numbers in rows:
            flags = 0
            if (loss := numbers.loss) is not None:
                if judge.floor < loss <= judge.bound:
                    judge.losses.append(loss)
                else:
                    flags |= self.inspect_loss(loss)
            if (norm := numbers.gradient_norm) is not None and not math.isfinite(norm):
                flags |= self.inspect_norm(norm)
            state.count("nonfinite_steps", number=bool(flags & FLAG["nonfinite"]))
        for name in LateNumbers._fields[1:]:
            numbers_read = [value for row in rows if (value := getattr(row, name)) is not None]
            if numbers_read:
                state.know(name, numbers_read[-1])
        losses = [(row.step, row.loss) for row in rows if row.loss is not None]
        for step, late_loss in losses[-LATE_LOSSES:]:
            index = slots.words[_LATE] % LATE_LOSSES
            slots.signed[PERIODIC.word("late_loss_step") + index] = step
            slots.floats[PERIODIC.word("late_loss") + index] = late_loss
            slots.words[_LATE] += 1

    def inspect_norm(self, norm: float) -> int:
        """Judges a gradient norm that no row can hold; returns the step's flags."""
        return self._parts.run("anomalies", self._anomalies.norm, norm) or 0

    def inspect_step(self, number: int, seconds: Sequence[float]) -> int:
        """Judges a step that took long, by the seconds of its phases; returns its flags."""
        return self._parts.run("anomalies", self._inspect_step, number, seconds) or 0

    def _inspect_step(self, number: int, seconds: Sequence[float]) -> int:
        flags = self._anomalies.step(number, seconds)
        self.recorder.usual_seconds = self._anomalies.usual_seconds
        return flags

    def part_failed(self, part: str, error: Exception) -> None:
        """A part that the recorder calls has failed; the recorder goes on without it."""
        self._parts.fail(part, error)

    def step_ended(self, now_ns: int, number: int, steps: int, seconds: float) -> None:
        """One of the bounds of the recorder is reached: finds out which."""
        recorder = self.recorder
        # Each 256th step goes to the traces too, as the running median has to move.
        is_judged = seconds > recorder.slow_seconds or not number & 255
        if is_judged and self._traces is not None:
            self._parts.run("spans", self._traces.step_ended, now_ns, number, seconds)
        if steps >= recorder.wake_rows:
            self._update_bounds(steps, now_ns)
        recorder.slow_seconds = self._slow_seconds(now_ns)
        if number >= recorder.wake_step or now_ns >= recorder.wake_ns:
            self.observer.step_ended(now_ns, number)

    def _slow_seconds(self, now_ns: int) -> float:
        """Duration above which a step is judged; infinite where none is."""
        judge = None if self._traces is None else self._traces.limit_seconds
        limit = None if judge is None else self._parts.run("spans", judge, now_ns)
        return math.inf if limit is None else limit

    def _judge_anew(self) -> None:
        self._judge.losses.extend(self.recorder.take_losses())
        self._anomalies.update_bounds()
        self._set_bounds()

    def _set_bounds(self) -> None:
        self._set_loss_bounds()
        self.recorder.usual_seconds = self._anomalies.usual_seconds

    def _judge_nothing(self) -> None:
        recorder = self.recorder
        recorder.loss_floor, recorder.loss_bound = -math.inf, math.inf
        recorder.usual_seconds, recorder.lasting_flags = math.inf, 0

    def _set_loss_bounds(self) -> None:
        recorder, judge = self.recorder, self._judge
        recorder.loss_floor, recorder.loss_bound = judge.floor, judge.bound
        recorder.lasting_flags = self._anomalies.lasting

    def _update_bounds(self, steps: int, now_ns: int) -> None:
        """Judges anew, and has our own calls timed in the next step; every 67th step at least."""
        recorder = self.recorder
        if not self.first_steps.is_over:
            self._parts.run("loop_check", self.first_steps.inspect_steps, steps)
        if recorder.measures:
            own_ns = time.monotonic_ns() - now_ns + recorder.own_ns
            self._periodic.slots.count("measured_steps")
            self._periodic.slots.add("measured_seconds", own_ns * _NS)
        else:
            self._parts.run("anomalies", self._judge_anew)
        recorder.measures = not recorder.measures and steps % _MEASURE_EVERY == 0
        recorder.own_ns = 0
        if recorder.measures:
            recorder.wake_rows, recorder.flags = steps + 1, recorder.flags | FLAG["measured"]
        else:
            next_measured = steps - steps % _MEASURE_EVERY + _MEASURE_EVERY
            judged = self.first_steps.judged_at_step
            judged = judged if steps < judged else next_measured
            recorder.wake_rows = min(2 * steps, next_measured, judged)
