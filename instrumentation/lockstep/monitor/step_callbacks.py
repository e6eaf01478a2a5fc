"""Callbacks of the recorder, each for one comparison of the hot path that something is due.

About once a second it asks for what ``periodic`` does, and besides for each step that is unusual.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockstep.guard import Parts, guarded
from lockstep.monitor.anomalies import AnomalyDetector
from lockstep.monitor.first_steps import FirstSteps
from lockstep.monitor.guarded_traces import GuardedTraces
from lockstep.monitor.loop_threads import LoopThreads
from lockstep.monitor.periodic import EVERY_NS, PeriodicStats
from lockstep.recorder.device import LateNumbers, LateRow
from lockstep.recorder.interface import StepRecorder
from lockstep.recorder.native import new_recorder
from lockstep.recorder.phases import FLAG
from lockstep_records.page.layout import LATE_LOSSES, PERIODIC
from lockstep_records.page.writer import PageWriter

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
        traces: writes spans of slow steps.
        step_while_off: takes steps that the recorder gets while it is off.

    Attributes:
        observer: called at the ends of the steps that it woke for.
        first_steps: finds what is not seen of the loop.
    """

    def __init__(
        self,
        page: PageWriter,
        periodic: PeriodicStats,
        traces: GuardedTraces,
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
        self.recorder.slow_seconds = traces.limit_seconds(time.monotonic_ns())

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
        if seconds > recorder.slow_seconds or not number & 255:
            self._traces.step_ended(now_ns, number, seconds)
        if steps >= recorder.wake_rows:
            self._update_bounds(steps, now_ns)
        recorder.slow_seconds = self._traces.limit_seconds(now_ns)
        if number >= recorder.wake_step or now_ns >= recorder.wake_ns:
            self.observer.step_ended(now_ns, number)

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
