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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lockstep.disabled import Disabled
from lockstep.guard import guarded
from lockstep.phases import (
    CODE,
    DONE,
    FAILED,
    INIT,
    NOT_WAITING,
    NUM_PHASES,
    OTHER,
    SYNC,
    code_of,
)
from lockstep.rows import NO_LENGTHS, Rows, figures_of
from lockstep.seldom import EVERY_NS, Seldom, last_error
from lockstep.traces import Traces
from lockstep.unusual import FLAG, Unusual
from lockstep_records.layout import SLOT
from lockstep_records.page_writer import PageWriter

log = logging.getLogger("lockstep")

_clock = time.monotonic_ns
_NS = 1e-9
_ERRORS = SLOT.word("internal_errors")
_EVERY = 67  # a prime, so that sampled steps are measured no more often than others
_NEVER_NS = 1 << 62


class PulseWord(Protocol):
    """One word that a mark replaces: its nanoseconds x 16 + code of the phase that begins."""

    def __setitem__(self, place: int, mark: int, /) -> None:
        """Replaces it; ``place`` is 0."""


class Monitor(Rows):
    """Records one rank. Made by ``lockstep.attach``; every method is safe to call at any time."""

    enabled = True

    def __init__(
        self,
        page: PageWriter,
        environment: Mapping[str, str] = os.environ,
        patience_seconds: float = 300.0,
    ) -> None:
        self._page = page
        self._traces = Traces(page, environment)
        self._seldom = Seldom(page, patience_seconds)
        self._unusual = Unusual(page, self._seldom)
        self._judge = self._unusual.judge
        self._losses = self._judge.losses
        self.pulse: PulseWord = page.pulse_word  # stood in for while a step is recorded
        self._spent_ns = [0] * NUM_PHASES
        self._now_in = INIT
        self._since_ns = self._begun_ns = _clock()
        self._gate_ns = self._due_ns = 0  # a mark before the gate has nothing to look at
        self._measures, self._own_ns = False, 0
        self._held = False
        self._flags = self._known = 0
        self.numbers = None
        self._look_at = 1
        self._first_arrival_ns = 0
        self._last_arrival_ns = 0
        self._next_step = 0
        self.wake_step = self.wake_ns = _NEVER_NS
        self.each_step: Callable[[int, int | None], None] = lambda _now, _step: None  # None: over
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
        self.pulse[0] = now << 4 | code
        if now >= self._gate_ns:
            self._tick(now)
        return now

    def mark(self, phase: str) -> None:
        """Ends the current phase and begins the named one.

        Raises:
            ValueError: no phase has that name.
        """
        try:
            code = CODE[phase]
        except KeyError:
            code = code_of(phase)
        now = _clock()
        if now >= self._gate_ns:
            self.enter(code)
            return
        # As _cut does: a call less in what a loop does ten times a step.
        self._spent_ns[self._now_in] += now - self._since_ns
        self._now_in = code
        self._since_ns = now
        self.pulse[0] = now << 4 | code

    @guarded
    def _tick(self, now: int) -> None:
        """Once a second what is seldom done; in a measured step after every mark."""
        if self._measures:
            self._own_ns += _clock() - now
        if now >= self._due_ns:
            self._due_ns = now + EVERY_NS
            self._seldom.tick(now)
        self._gate_ns = 0 if self._measures or self._held else self._due_ns

    def first_arrival(self) -> None:
        """The rank has handed over its first gradients of the step."""
        if not self._first_arrival_ns:
            self._first_arrival_ns = _clock()

    def wait_begins(self) -> int:
        """From here on the rank waits for others; gives the phase to go on with then."""
        interrupted = self._now_in
        if self._held or interrupted == SYNC:
            return NOT_WAITING
        now = self._cut(SYNC)
        if not self._first_arrival_ns:
            self._first_arrival_ns = now
        return interrupted

    def wait_ended(
        self,
        interrupted: int,
        kind: str | None,
        calls: int = 1,
        size_bytes: int = 0,
        ranks: int | None = None,
    ) -> None:
        """The others were there: so many collectives of a kind, or of none that is counted."""
        if interrupted == NOT_WAITING or self._now_in != SYNC:
            return
        try:
            begun = self._since_ns
            now = self._cut(interrupted)
            if kind != "send_recv":  # which brings two ranks together, not the group
                # As if all waiting of the step had come last: docs/decisions/0006-attach-points.md.
                self._last_arrival_ns = now - int(self._spent_ns[SYNC])
            if kind is not None:
                self._page.count_collective(kind, calls, size_bytes, (now - begun) * _NS)
                if ranks is not None:
                    self._count_bus(kind, size_bytes, ranks)
        except Exception as error:  # noqa: BLE001  # as guarded does, without its cost
            self.fail(error)

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
            lengths = figures_of(sequence_lengths) if sequence_lengths else NO_LENGTHS
            told = (row_loss, row_norm, tokens, samples)
            steps = self._write_row(now, number, flags, present, told, lengths)
            if steps >= self._look_at:
                self._look(steps, now)
            if number >= self.wake_step or now >= self.wake_ns:
                self.each_step(now, number)
        except Exception as error:  # noqa: BLE001  # as guarded does, without its cost
            self.fail(error)

    def _look(self, steps: int, now: int) -> None:
        """Seldom: judges anew, and lets our own calls be timed in the step that comes."""
        if self._measures:
            self._seldom.slots.count("measured_steps")
            self._seldom.slots.add("measured_seconds", (_clock() - now + self._own_ns) * _NS)
            self._gate_ns = self._due_ns
        else:
            self._unusual.look()
        self._measures, self._own_ns = not self._measures and steps % _EVERY == 0, 0
        if self._measures:
            self._look_at, self._gate_ns, self._flags = steps + 1, 0, self._flags | FLAG["measured"]
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
        self._gate_ns = self._due_ns = _NEVER_NS
        now = self._cut(FAILED if failed else DONE)
        self._take_phases()
        self._seldom.close(now)
        self._page.commit(now)
        self._traces.close()
        self._page.close()
        _let_go(self)


def _let_go(monitor: "Monitor | None") -> None:
    """Turns a monitor into the disabled one for whoever still holds it."""
    if monitor is not None:
        monitor.each_step(0, None)
        monitor.__class__ = Disabled  # type: ignore[assignment]  # off is an object, not an if


def _forked(monitor: "Monitor | None") -> None:
    """The child leaves the page alone; loader workers fork as well, so it is no warning."""
    if isinstance(monitor, Monitor):
        monitor.tell_fork()
