"""The monitor: cuts a rank's time into contiguous phases and writes a row a step into its page.

Hot path: a mark is one clock read, one addition and one store; a step is one row and one slot.
It makes no system call but the clock's, takes no lock, and starts no collective. On a GPU the
marks tell host time: what the device does meanwhile is not waited for.
"""

import functools
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from lockstep.disabled import Disabled
from lockstep.loading import TimedLoader
from lockstep.phases import DONE, FAILED, IN_STEP, INIT, NUM_PHASES, OTHER, SYNC, code_of
from lockstep_records.layout import ROW, SLOT
from lockstep_records.page_writer import PageWriter

T = TypeVar("T")
P = ParamSpec("P")
log = logging.getLogger("lockstep")

_NS = 1e-9
_LARGEST = 3.4e38  # what a row can hold; a loss beyond it is as good as infinite
_PHASE_SECONDS = SLOT.word("phase_seconds")
_STEP = SLOT.word("step")
_PRESENT = SLOT.word("present")
_TOKENS = SLOT.word("tokens")
_SAMPLES = SLOT.word("samples")
_NONFINITE = SLOT.word("nonfinite_steps")
_ERRORS = SLOT.word("internal_errors")
_LOSS_BIT = ROW.presence["loss"]
_NORM_BIT = ROW.presence["gradient_norm"]
_FIRST_BIT = ROW.presence["first_arrival_ns"]
_LAST_BIT = ROW.presence["last_arrival_ns"]
# Word and presence bit of what a step may tell, in the order of Monitor.step.
_TOLD = tuple(
    (SLOT.word(name), SLOT.presence[name]) for name in ("loss", "gradient_norm", "learning_rate")
)
_STEP_BIT = SLOT.presence["step"]


def guarded(
    method: Callable[Concatenate["Monitor", P], None],
) -> Callable[Concatenate["Monitor", P], None]:
    """Lets no error of ours into the training loop: it is counted, said once, and we turn off."""

    def safely(self: "Monitor", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # one of the two places that may: the step
            self.fail(error)

    return functools.update_wrapper(safely, method)


class Monitor(Disabled):
    """Records one rank. Made by ``lockstep.attach``; every method is safe to call at any time."""

    enabled = True

    def __init__(self, page: PageWriter) -> None:
        self._page = page
        self.pulse = page.pulse  # stood in for while a step is recorded
        self._spent_ns = [0] * NUM_PHASES
        self._now_in = INIT
        self._since_ns = time.monotonic_ns()
        self._held = False
        self._first_arrival_ns = 0
        self._last_arrival_ns = 0
        self._next_step = 0
        self.each_step: Callable[[int, int | None], None] = lambda _now, _step: None  # None: over
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _let_go(me()))

    def enter(self, code: int) -> None:
        """Ends the current phase and begins another, unless a span holds the phase."""
        if not self._held:
            self._cut(code)

    def _cut(self, code: int) -> int:
        now = time.monotonic_ns()
        self._spent_ns[self._now_in] += now - self._since_ns
        self._now_in = code
        self._since_ns = now
        self.pulse(now, code)
        return now

    def mark(self, phase: str) -> None:
        """Ends the current phase and begins the named one.

        Raises:
            ValueError: no phase has that name.
        """
        self.enter(code_of(phase))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the block as one phase, whatever hooks fire inside, such as in an evaluation.

        Raises:
            ValueError: no phase has that name.
        """
        outer, was_held = self._now_in, self._held
        self._cut(code_of(name))
        self._held = True
        try:
            yield
        finally:
            self._held = was_held
            self._cut(outer if was_held else OTHER)

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The same batches; the time until each is there counts as waiting for data."""
        return TimedLoader(self, loader)

    @contextmanager
    def checkpoint(self, step: int | None = None) -> Iterator[None]:
        """Counts the block as writing a checkpoint; an exception in it makes the attempt failed."""
        outcome = "failed"
        try:
            with self.phase("checkpoint"):
                yield
            outcome = "ok"
        finally:
            self._count_checkpoint(outcome, step)

    @guarded
    def _count_checkpoint(self, outcome: str, step: int | None) -> None:
        self._page.count_checkpoint(outcome)
        if outcome == "ok":
            signed = self._page.signed
            signed[SLOT.word("checkpoint_wall_ns")] = time.time_ns()
            present = SLOT.presence["checkpoint_wall_ns"]
            if step is not None:
                signed[SLOT.word("checkpoint_step")] = step
                present |= SLOT.presence["checkpoint_step"]
            self._page.words[_PRESENT] |= present
        self._page.commit(time.monotonic_ns())

    def first_arrival(self) -> None:
        """The rank has handed over its first gradients of the step."""
        if not self._first_arrival_ns:
            self._first_arrival_ns = time.monotonic_ns()

    def arrive(self) -> None:
        """The rank's last local gradient is ready: from here on it waits for the others."""
        if not self._held:
            self._last_arrival_ns = self._cut(SYNC)

    @guarded
    def complete(self, calls: int, size_bytes: int) -> None:
        """The gradients of all ranks are there: so many collectives of so many bytes together."""
        if self._now_in == SYNC:
            now = self._cut(OTHER)
            waited = (now - self._last_arrival_ns) * _NS
            self._page.count_collective("all_reduce", calls, size_bytes, waited)

    @guarded
    def step(
        self,
        *,
        step: int | None = None,
        loss: object = None,
        gradient_norm: object = None,
        learning_rate: object = None,
        tokens: int = 0,
        samples: int = 0,
    ) -> None:
        """Ends the step and writes its row.

        Args:
            step: number of the step as the job counts; counted from 0 when left out.
            loss: training loss of this rank; a number or a tensor on the CPU. A tensor on a GPU
                would have to be waited for, so it counts as unknown.
            gradient_norm: norm before clipping; the same kinds.
            learning_rate: learning rate of the step.
            tokens: tokens of this rank in the step.
            samples: samples of this rank in the step.
        """
        now = self._cut(OTHER)
        number = self._next_step if step is None else step
        self._next_step = number + 1
        told = (_number(loss), _number(gradient_norm), _number(learning_rate))
        self._write_row(now, number, told, tokens, samples)
        self._tell(number, told, tokens, samples)
        self._page.commit(now)
        self.each_step(now, number)

    def _write_row(
        self,
        now: int,
        number: int,
        told: tuple[float | None, ...],
        tokens: int,
        samples: int,
    ) -> None:
        seconds = self._take_phases()
        total = sum(seconds)
        present = 0
        loss, norm = told[0], told[1]
        if loss is not None:
            present |= _LOSS_BIT
        if norm is not None:
            present |= _NORM_BIT
        if self._last_arrival_ns:
            present |= _LAST_BIT
        if self._first_arrival_ns:
            present |= _FIRST_BIT
        self._page.append(
            (
                number,
                now - int(total * 1e9),
                self._first_arrival_ns,
                self._last_arrival_ns,
                total,
                *seconds,
                _fitting(loss),
                _fitting(norm),
                tokens,
                samples,
                present,
            )
        )
        self._page.count_step_seconds(total)
        self._first_arrival_ns = self._last_arrival_ns = 0

    def _take_phases(self) -> list[float]:
        """Seconds of the step's phases, added to the totals and begun anew."""
        seconds = [spent * _NS for spent in self._spent_ns]
        self._spent_ns = [0] * NUM_PHASES
        floats, word = self._page.floats, _PHASE_SECONDS
        for part in seconds:
            if part:
                floats[word] += part
            word += 1
        return seconds[IN_STEP]

    def _tell(self, number: int, told: tuple[float | None, ...], tokens: int, samples: int) -> None:
        page, present, finite = self._page, _STEP_BIT, True
        page.signed[_STEP] = number
        for (word, bit), value in zip(_TOLD, told, strict=True):
            if value is not None:
                page.floats[word] = value
                present |= bit
                finite = finite and math.isfinite(value)
        page.words[_PRESENT] |= present
        page.words[_TOKENS] += tokens
        page.words[_SAMPLES] += samples
        if not finite:
            page.words[_NONFINITE] += 1

    def fail(self, error: Exception) -> None:
        """Counts an error of ours, says it once and turns the monitor off; training goes on."""
        self._page.words[_ERRORS] += 1
        self._page.commit(time.monotonic_ns())
        log.warning("the monitor is off after an error of its own; training goes on: %r", error)
        _let_go(self)

    @guarded
    def close(self, *, failed: bool = False) -> None:
        """Writes what is left and says that the rank is done, or that it failed."""
        now = self._cut(FAILED if failed else DONE)
        self._take_phases()
        self._page.commit(now)
        self._page.close()
        _let_go(self)


def _let_go(monitor: "Monitor | None") -> None:
    """Turns a monitor into the disabled one for whoever still holds it."""
    if monitor is not None:
        monitor.each_step(0, None)
        monitor.__class__ = Disabled  # type: ignore[assignment]  # off is an object, not an if


def _fitting(value: float | None) -> float:
    """The value as a row can hold it; a diverging one becomes infinite."""
    known = value or 0.0
    return math.copysign(math.inf, known) if abs(known) > _LARGEST else known


def _number(value: Any) -> float | None:
    """A number without waiting for a device; None when that is not possible."""
    if value is None or getattr(value, "is_cuda", False):
        return None
    return float(value)
