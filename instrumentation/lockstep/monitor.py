"""The monitor: cuts a rank's time into contiguous phases and writes a row a step into its page.

Hot path: a mark is one clock read, one addition and one store; a step is one row and one slot.
It takes no lock, starts no collective, and makes no system call but the clock's; about once a
second a mark also does what ``seldom`` says. On a GPU the marks tell host time: what the device
does meanwhile is not waited for.
"""

import logging
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

from lockstep.disabled import Disabled
from lockstep.guard import guarded
from lockstep.phases import CODE, DONE, FAILED, INIT, NUM_PHASES, OTHER, SYNC, code_of
from lockstep.rows import NO_LENGTHS, Rows, figures_of
from lockstep.seldom import EVERY_NS, Seldom, last_error
from lockstep.unusual import FLAG, Unusual
from lockstep_records.layout import SLOT
from lockstep_records.page_writer import PageWriter

log = logging.getLogger("lockstep")

_clock = time.monotonic_ns
_NS = 1e-9
_ERRORS = SLOT.word("internal_errors")
_EVERY = 64
_NEVER_NS = 1 << 62


class Monitor(Rows):
    """Records one rank. Made by ``lockstep.attach``; every method is safe to call at any time."""

    enabled = True

    def __init__(self, page: PageWriter, patience_seconds: float = 300.0) -> None:
        self._page = page
        self._seldom = Seldom(page, patience_seconds)
        self._unusual = Unusual(page, self._seldom)
        self._judge = self._unusual.judge
        self._losses = self._judge.losses
        self._pulse = page.pulse_word
        self._spent_ns = [0] * NUM_PHASES
        self._now_in = INIT
        self._since_ns = _clock()
        self._tick_ns = self._due_ns = 0
        self._measures, self._own_ns = False, 0
        self._held = False
        self._flags = 0
        self._look_at = 1
        self._first_arrival_ns = 0
        self._last_arrival_ns = 0
        self._next_step = 0
        me = weakref.ref(self)
        os.register_at_fork(
            after_in_child=lambda: _let_go(me()), after_in_parent=lambda: _forked(me())
        )

    @property
    def next_step(self) -> int:
        """Number that the step which runs now will have."""
        return self._next_step

    def enter(self, code: int) -> None:
        """Ends the current phase and begins another, unless a span holds the phase."""
        if not self._held:
            self._cut(code)

    def _cut(self, code: int) -> int:
        now = _clock()
        self._spent_ns[self._now_in] += now - self._since_ns
        self._now_in = code
        self._since_ns = now
        self._pulse[0] = now << 4 | code
        if now >= self._tick_ns:
            self._tick(now)
        return now

    def mark(self, phase: str) -> None:
        """Ends the current phase and begins the named one.

        Raises:
            ValueError: no phase has that name.
        """
        code = CODE.get(phase)
        if code is None:
            code_of(phase)
        elif not self._held:  # as _cut does: a call less in what a loop does ten times a step
            now = _clock()
            self._spent_ns[self._now_in] += now - self._since_ns
            self._now_in = code
            self._since_ns = now
            self._pulse[0] = now << 4 | code
            if now >= self._tick_ns:
                self._tick(now)

    @guarded
    def _tick(self, now: int) -> None:
        """Once a second what is seldom done; in a measured step after every mark."""
        if self._measures:
            self._own_ns += _clock() - now
        if now >= self._due_ns:
            self._due_ns = now + EVERY_NS
            self._seldom.tick(now)
        self._tick_ns = 0 if self._measures else self._due_ns

    def first_arrival(self) -> None:
        """The rank has handed over its first gradients of the step."""
        if not self._first_arrival_ns:
            self._first_arrival_ns = _clock()

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

    def step(
        self,
        *,
        step: int | None = None,
        loss: Any = None,
        gradient_norm: Any = None,
        learning_rate: Any = None,
        tokens: int = 0,
        samples: int = 0,
        sequence_lengths: Sequence[int] = (),
    ) -> None:
        """Ends the step and writes its row.

        Args:
            step: number of the step as the job counts; counted from 0 when left out.
            loss: training loss of this rank; a number or a tensor on the CPU. A tensor on a GPU
                would have to be waited for, so it counts as unknown.
            gradient_norm: norm before clipping; the same kinds.
            learning_rate: learning rate of the step.
            tokens: tokens of this rank in the step; the sum of the lengths when left out.
            samples: samples of this rank in the step; as many as lengths when left out.
            sequence_lengths: tokens of each sequence of this rank in the step.
        """
        try:
            now = self._cut(OTHER)
            number = self._next_step if step is None else step
            self._next_step = number + 1
            flags, present, row_loss, row_norm = self._tell(loss, gradient_norm, learning_rate)
            if sequence_lengths:
                tokens, samples = tokens or sum(sequence_lengths), samples or len(sequence_lengths)
            told = (row_loss, row_norm, tokens, samples)
            lengths = figures_of(sequence_lengths) if sequence_lengths else NO_LENGTHS
            steps = self._write_row(now, number, flags, present, told, lengths)
            if steps >= self._look_at:
                self._look(steps, now)
        except Exception as error:  # noqa: BLE001  # as guarded does, without its cost
            self.fail(error)

    def _look(self, steps: int, now: int) -> None:
        """Seldom: judges anew, and lets our own calls be timed in the step that comes."""
        if self._measures:
            self._seldom.slots.count("measured_steps")
            self._seldom.slots.add("measured_seconds", (_clock() - now + self._own_ns) * _NS)
            self._tick_ns = self._due_ns
        else:
            self._unusual.look()
        self._measures, self._own_ns = not self._measures and steps % _EVERY == 0, 0
        if self._measures:
            self._look_at, self._tick_ns, self._flags = steps + 1, 0, self._flags | FLAG["measured"]
        else:
            self._look_at = min(2 * steps, steps - steps % _EVERY + _EVERY)

    def fail(self, error: Exception) -> None:
        """Counts an error of ours, says it once and turns the monitor off; training goes on."""
        self._page.words[_ERRORS] += 1
        self._page.commit(_clock())
        log.warning("the monitor is off after an error of its own; training goes on: %r", error)
        _let_go(self)

    @guarded
    def close(self, *, failed: bool = False) -> None:
        """Writes what is left and says that the rank is done, or that it failed."""
        error = last_error() if failed else None
        if error is not None:
            self._seldom.tell_error(error)
        self._tick_ns = self._due_ns = _NEVER_NS
        now = self._cut(FAILED if failed else DONE)
        self._take_phases()
        self._seldom.close(now)
        self._page.commit(now)
        self._page.close()
        _let_go(self)


def _let_go(monitor: "Monitor | None") -> None:
    """Turns a monitor into the disabled one for whoever still holds it."""
    if monitor is not None:
        monitor.__class__ = Disabled  # type: ignore[assignment]  # off is an object, not an if


def _forked(monitor: "Monitor | None") -> None:
    """The child leaves the page alone; loader workers fork as well, so it is no warning."""
    if isinstance(monitor, Monitor):
        monitor.tell_fork()
