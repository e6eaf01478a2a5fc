"""The plain recorder, for where the one in C was not compiled: the same rows, by simpler means.

It reads nothing of a device, sees no stops of the process and no waits for a core, and costs
several times as much.
"""

import math
import operator
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from lockstep.guard import guarded, outcome_of
from lockstep.recorder.interface import (
    LOSSES,
    NEVER,
    Ignored,
    PhaseHook,
    RecorderCallbacks,
    StepRecorder,
)
from lockstep.recorder.phases import (
    FLAG,
    INIT,
    NOT_WAITING,
    NUM_PHASES,
    OPTIMIZER,
    OTHER,
    RESTORE,
    STEP_SLICE,
    SYNC,
    code_of,
)
from lockstep_records.page.layout import PHASES
from lockstep_records.page.writer import PageWriter

_SHARDED = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
_UNSCALED = frozenset({"broadcast", "send_recv"})
MAX_COUNT = (1 << 32) - 1  # tokens and samples of a row have 32 bits


@cache  # few kinds and sizes of groups, some of them needed in every step
def bus_factor(kind: str, ranks: int) -> float:
    """Bytes on the bus for each byte of a collective, whose size is that which nccl-tests prints.

    What the slowest link carries, for any size of group, 0 to 2; the formulas are those of
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. A kind without a factor, or
    an empty group, is a ValueError.
    """
    if ranks < 1:
        raise ValueError(f"ranks {ranks} must be at least 1, the rank itself")
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in _SHARDED:
        return (ranks - 1) / ranks
    if kind in _UNSCALED:
        return 1.0 if ranks > 1 else 0.0
    raise ValueError(f"kind {kind!r} has no factor of bus bandwidth; use a value of the label kind")


def sequence_figures(lengths: Sequence[int]) -> tuple[int, int, int, int, float]:
    """Shortest, longest, sum, number, and sum of squares of lengths; ValueError if too large."""
    shortest, longest, total = min(lengths), max(lengths), sum(lengths)
    if shortest < 0 or max(longest, total) > MAX_COUNT:
        raise ValueError("sequence_lengths are outside of what a row can hold")
    return shortest, longest, total, len(lengths), float(sum(n * n for n in lengths))


_NS = 1e-9
_LARGEST = 3.4e38  # a row has single precision; a loss beyond it is as good as infinite
_STEP_RANGE = -(1 << 63), (1 << 63) - 2


class PlainHook(PhaseHook):
    """A ``PhaseHook`` of the plain recorder."""

    def __init__(self, recorder: "PlainRecorder", phase: int) -> None:
        self._recorder, self._phase = recorder, phase
        self.callback: Callable[..., object] | None = None
        self.quiet_from = self.quiet_until = 0

    def __call__(self, *args: Any) -> None:
        recorder = self._recorder
        if self._phase == OPTIMIZER:
            recorder.optimizers += 1
        elif self._phase == OTHER:
            recorder.optimizers = max(0, recorder.optimizers - 1)
        recorder.enter_code(self._phase)
        is_quiet = self.quiet_from <= recorder.next_step < self.quiet_until
        if self.callback is not None and recorder.on and not is_quiet:
            self.callback(*args)

    def __reduce__(self) -> tuple[type[Ignored], tuple[()]]:
        return Ignored, ()


class PlainRecorder(StepRecorder):
    """A ``StepRecorder`` that writes rows by ``PageWriter``."""

    uses_device = False

    def __init__(self, page: PageWriter, callbacks: RecorderCallbacks) -> None:
        self._page, self._callbacks, self.fail = page, callbacks, callbacks.fail
        self.heartbeat: Any = page.heartbeat_word
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self.on, self.held, self.measures, self.counts_batches = True, False, False, True
        self.phase = INIT
        self.since_ns = self._begun_ns = time.monotonic_ns()
        self._spent_ns = [0] * NUM_PHASES
        self._first_arrival_ns = self._last_arrival_ns = 0
        self.optimizers = self.batch_samples = self.batch_tokens = 0
        self.own_ns = self.due_ns = self.next_step = self.flags = self.lasting_flags = 0
        self.wake_rows, self.wake_step, self.wake_ns = 1, NEVER, NEVER
        self.loss_floor, self.loss_bound = -math.inf, math.inf
        self.usual_seconds, self.slow_seconds = math.inf, 0.0

    def stop(self) -> None:
        self.on = False

    release = stop

    def restart(self, now_ns: int) -> None:
        self.on = True
        self._spent_ns = [0] * NUM_PHASES
        self.phase, self.since_ns, self.optimizers = OTHER, now_ns, 0
        self._first_arrival_ns = self._last_arrival_ns = 0

    def _do_nothing(self, *_: Any) -> None:
        pass

    use_device = call_when_passed = settle = watch_stops = is_device_busy = _do_nothing
    watch_run_queue = _do_nothing  # type: ignore[assignment]  # whatever it is given

    def phase_hook(self, phase: int) -> PlainHook:
        return PlainHook(self, phase)

    def enter_phase(self, phase: str) -> None:
        if self.on:
            self.enter_code(code_of(phase))

    def enter_code(self, code: int) -> None:
        if not self.held:
            # What ends within an optimizer's step, such as its closure's backward, goes back to it.
            self.switch_phase(OPTIMIZER if code == OTHER and self.optimizers else code)

    def switch_phase(self, code: int) -> int:
        if not self.on:
            return 0
        now_ns = time.monotonic_ns()
        self._spent_ns[self.phase] += now_ns - self.since_ns
        self.phase, self.since_ns = code, now_ns
        self.heartbeat[0] = now_ns << 4 | code
        if now_ns >= self.due_ns:
            self.due_ns = self._callbacks.tick(now_ns)
        if self.measures:
            self.own_ns += time.monotonic_ns() - now_ns
        return now_ns

    def first_arrival(self) -> None:
        if self.on:
            self._first_arrival_ns = self._first_arrival_ns or time.monotonic_ns()

    def wait_begins(self) -> int:
        if not self.on or self.held or self.phase == SYNC:
            return NOT_WAITING
        interrupted = self.phase
        now_ns = self.switch_phase(SYNC)
        self._first_arrival_ns = self._first_arrival_ns or now_ns
        return interrupted

    @guarded
    def wait_ended(
        self,
        interrupted: int,
        kind: str | None,
        calls: int = 1,
        size_bytes: int = 0,
        ranks: int | None = None,
    ) -> None:
        if interrupted == NOT_WAITING or self.phase != SYNC or not self.on:
            return
        begun_ns = self.since_ns
        now_ns = self.switch_phase(interrupted)
        if kind != "send_recv":  # which brings two ranks together, not the group
            # As if all waiting of the step came last: docs/decisions/0006-*.md.
            self._last_arrival_ns = now_ns - self._spent_ns[SYNC]
        if kind is None:
            return
        factor = 0.0 if ranks is None else bus_factor(kind, ranks)
        self._page.count_collective(kind, calls, size_bytes, (now_ns - begun_ns) * _NS)
        self._page.periodic.count("bus_bytes", kind, int(size_bytes * factor))

    def step(self, *, step: int | None = None, **numbers: Any) -> None:
        if self.on:
            self._end_step(step, **numbers)
        else:
            self._callbacks.step_while_off(step)

    @guarded
    def _end_step(
        self,
        step: Any,
        *,
        loss: Any = None,
        gradient_norm: Any = None,
        learning_rate: Any = None,
        tokens: Any = 0,
        samples: Any = 0,
        sequence_lengths: Sequence[int] = (),
    ) -> None:
        self.optimizers = 0  # one that failed has no end
        now_ns = self.switch_phase(OTHER)
        read = None if step is None else self._read(_integer_of, step, *_STEP_RANGE)
        number = self.next_step if read is None else read
        self.next_step = number + 1
        row = self._take_numbers(loss, gradient_norm, learning_rate)
        row |= self._take_counts(tokens, samples, sequence_lengths)
        parts = self._end_phases()
        begun_ns, self._begun_ns = self._begun_ns, now_ns
        seconds = (now_ns - begun_ns) * _NS
        if seconds > self.usual_seconds:
            row["flags"] |= self._callbacks.inspect_step(number, parts)
        row |= {
            "first_arrival_ns": self._first_arrival_ns or None,
            "last_arrival_ns": self._last_arrival_ns or None,
        }
        self._first_arrival_ns = self._last_arrival_ns = 0
        steps = self._page.append(
            step=number, start_ns=begun_ns, seconds=seconds, phase_seconds=parts, **row
        )
        self._page.count_step(number, seconds, row["tokens"], row["samples"])
        self._page.commit(now_ns)
        is_due = steps >= self.wake_rows or number >= self.wake_step or now_ns >= self.wake_ns
        # Each 256th step goes through, for the running median of slow steps.
        if is_due or seconds > self.slow_seconds or not number & 255:
            self._callbacks.step_ended(now_ns, number, steps, seconds)

    def _take_numbers(self, *values: Any) -> dict[str, Any]:
        """Takes loss, norm and rate into the state; returns the row's, and its flags."""
        state, flags = self._page.now, self.flags
        loss, norm, rate = (self._read(_number_of, value) for value in values)
        if loss is not None and self.loss_floor < loss <= self.loss_bound:
            self._losses.append(loss)
            flags |= self.lasting_flags
        elif loss is not None:
            flags |= self._callbacks.inspect_loss(loss)
        if norm is not None and not abs(norm) < _LARGEST:
            flags |= self._callbacks.inspect_norm(norm)
        for name, value in (("loss", loss), ("gradient_norm", norm), ("learning_rate", rate)):
            if value is not None:
                state.know(name, value)
        state.know("step", self.next_step - 1)
        state.count("nonfinite_steps", number=bool(flags & FLAG["nonfinite"]))
        self.flags = 0
        return {"loss": _fitting(loss), "gradient_norm": _fitting(norm), "flags": flags}

    def _take_counts(self, tokens: Any, samples: Any, lengths: Sequence[int]) -> dict[str, int]:
        """Takes the lengths into the row; returns tokens and samples, the lengths' if left out."""
        counts = [self._read(_integer_of, value, 0, MAX_COUNT) or 0 for value in (tokens, samples)]
        figures = self._read(sequence_figures, lengths) if lengths else None
        if figures is not None:
            shortest, longest, total, count, squares = figures
            for name, value in (("min", shortest), ("max", longest), ("squares", squares)):
                self._page.add_to_row(f"sequence_{name}", value)
            counts = [counts[0] or total, counts[1] or count]
        if self.batch_samples and counts[1] and (counts[0] or not self.batch_tokens):
            self.counts_batches = False  # the loop says all that they would
        counts = [counts[0] or self.batch_tokens, counts[1] or self.batch_samples]
        self.batch_tokens = self.batch_samples = 0
        return {"tokens": counts[0], "samples": counts[1]}

    def _read(self, read: Callable[..., Any], *args: Any) -> Any:
        """What was read of the loop's; None where it cannot be, and the step goes without it."""
        outcome = outcome_of(read, *args)
        if isinstance(outcome, Exception):
            self._callbacks.part_failed("loop_numbers", outcome)
            return None
        return outcome

    def _end_phases(self) -> list[float]:
        """Seconds of the step's phases; adds all to the totals, and begins anew."""
        spent_ns, self._spent_ns = self._spent_ns, [0] * NUM_PHASES
        for phase, nanoseconds in zip(PHASES, spent_ns, strict=True):
            if nanoseconds:
                self._page.now.add("phase_seconds", nanoseconds * _NS, phase)
        # They count in the totals only: the step begins after them.
        self._begun_ns += spent_ns[INIT] + spent_ns[RESTORE]
        return [nanoseconds * _NS for nanoseconds in spent_ns[STEP_SLICE]]

    def take_phases(self) -> None:
        self._end_phases()

    def take_losses(self) -> list[float]:
        losses = [*self._losses]
        self._losses.clear()
        return losses


def _integer_of(value: Any, least: int, most: int) -> int:
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{value!r} is outside of what a row can hold")
    return number


def _number_of(value: Any) -> float | None:
    """A number without waiting for a device; None when that is not possible."""
    # item() of a tensor on a GPU would wait for all work of its stream.
    if value is None or getattr(value, "is_cuda", False):
        return None
    return float(value.item() if hasattr(value, "item") else value)


def _fitting(value: float | None) -> float | None:
    """The value as a row can hold it; a diverging one becomes infinite."""
    if value is None or not abs(value) > _LARGEST:
        return value
    return math.copysign(math.inf, value)
