"""The recorder: divides a rank's time into contiguous phases and writes a row a step into its page.

Hot path: a phase costs one clock read, one addition and one store; a step one row and one slot.
It takes no lock, starts no collective, and makes no system call but the clock's and, at most once
in 50 ms, one that reads what the loop's thread waited for a core. What is seldom or unusual is left
to callbacks, behind a comparison. On a GPU each boundary also puts an event into the stream
(``device_timeline``), and the row is written once more when the device has passed it.

``lockstep._native`` holds the same recorder in C, for where it could be compiled.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockstep.recorder.bus import bus_factor
from lockstep.recorder.device import Device
from lockstep.recorder.device_rows import DeviceRows, StepPassed
from lockstep.recorder.device_timeline import DeviceTimeline
from lockstep.recorder.phases import CODE, INIT, NOT_WAITING, NUM_PHASES, OTHER, SYNC, code_of
from lockstep.recorder.rows import RecorderCallbacks, Rows
from lockstep_records.page.layout import COLLECTIVE_KINDS, PERIODIC
from lockstep_records.page.writer import PageWriter

_clock = time.monotonic_ns
_NS = 1e-9
NEVER = 1 << 62  # nanoseconds or steps
_BUS_BYTES = {kind: PERIODIC.word("bus_bytes") + n for n, kind in enumerate(COLLECTIVE_KINDS)}


class HeartbeatWord(Protocol):
    """One word, replaced when a phase begins: monotonic nanoseconds x 16 + code of the phase."""

    def __setitem__(self, index: int, word: int, /) -> None:
        """Replaces it; ``index`` is 0."""


class Ignored:
    """What a copy of a watched model or optimizer has in the place of a hook."""

    def __call__(self, *_: Any) -> None:
        """Does nothing."""


class PhaseHook:
    """A hook that enters one phase, whatever it is called with.

    Attributes:
        callback: called with the same, but not in steps from ``quiet_from`` to before
            ``quiet_until``.
    """

    def __init__(self, recorder: "StepRecorder", phase: int) -> None:
        self._recorder, self._phase = recorder, phase
        self.callback: Callable[..., object] | None = None
        self.quiet_from = self.quiet_until = 0

    def __call__(self, *args: Any) -> None:
        """Enters the phase, then calls the callback."""
        recorder = self._recorder
        recorder.enter_code(self._phase)
        if (
            self.callback is None
            or self.quiet_from <= recorder.next_step < self.quiet_until
            or not recorder.on
        ):
            return
        self.callback(*args)

    def __reduce__(self) -> tuple[type[Ignored], tuple[()]]:
        return Ignored, ()


class StepRecorder(Rows):
    """Writes one rank's page; every method is safe to call at any time, from the loop's thread.

    Attributes:
        on: whether anything is written.
        held: whether a block holds the phase, so that entering others inside it changes nothing.
        measures: whether ``own_ns`` adds up the time that the recorder itself takes.
        own_ns: that time, in the step that runs now.
        phase: code of the phase that runs now.
        since_ns: monotonic nanoseconds of its begin.
        due_ns: a phase that begins before it needs no ``tick``.
        wake_rows, wake_step, wake_ns: number of rows, step and moment from which the end of a step
            calls ``step_ended``.
        heartbeat: the page's word; replaced while the operations of a step are recorded.
        next_step: number that the step which runs now will have.
    """

    def __init__(self, page: PageWriter, callbacks: RecorderCallbacks) -> None:
        super().__init__(page, callbacks)
        self.heartbeat: HeartbeatWord = page.heartbeat_word
        self.phase = INIT
        self.since_ns = self._begun_ns = _clock()
        self._gate_ns = self.due_ns = 0  # before the gate entering a phase needs no check at all
        self.on, self._held, self._measures = True, False, False
        self._timeline: DeviceTimeline | None = None
        self.own_ns, self.wake_rows = 0, 1
        self.wake_step = self.wake_ns = NEVER

    @property
    def held(self) -> bool:
        """Whether a block holds the phase."""
        return self._held

    @held.setter
    def held(self, value: bool) -> None:
        self._held, self._gate_ns = value, 0

    @property
    def measures(self) -> bool:
        """Whether the recorder times itself in the step that runs now."""
        return self._measures

    @measures.setter
    def measures(self, value: bool) -> None:
        self._measures, self._gate_ns = value, 0

    def stop(self) -> None:
        """Writes nothing from now on."""
        self.on, self._gate_ns = False, 0

    def use_device(self, device: Device) -> None:
        """Times steps on a device from now on; the running step as well, from here."""
        self.device_rows = DeviceRows(device, self._page, self._callbacks.part_failed)
        self._timeline, self._gate_ns = self.device_rows.timeline, 0
        self._timeline.begin(_clock(), self.phase)

    @property
    def uses_device(self) -> bool:
        """Whether steps are timed on a device."""
        return self.device_rows is not None

    def call_when_passed(self, callback: StepPassed) -> None:
        """Has it called once the device has passed the step that ended last, if it ever has."""
        if self.device_rows is not None:
            self.device_rows.call_when_passed(callback)

    def settle(self) -> None:
        """Takes all steps into the totals that still wait for the device; waits for none."""
        if self.device_rows is not None:
            self.device_rows.settle_all(_clock())

    def release(self) -> None:
        """Releases the page, which can be closed from then on."""
        self.stop()

    def restart(self, now_ns: int) -> None:
        """Writes again; time counts from now on, within a step."""
        self.on = True
        # What was spent while suspended belongs to no phase and to no step.
        self._spent_ns = [0] * NUM_PHASES
        self.phase, self.since_ns = OTHER, now_ns
        self._first_arrival_ns = self._last_arrival_ns = 0
        self._run_queue.restart()
        if self.device_rows is not None:
            self.device_rows.timeline.begin(now_ns, OTHER)

    def enter_code(self, code: int) -> None:
        """Ends the current phase and begins another, unless a block holds the phase."""
        if self.on and not self._held:
            self.switch_phase(code)

    def switch_phase(self, code: int) -> int:
        """Ends the current phase and begins another; returns the monotonic nanoseconds."""
        now = _clock()
        interrupted = self.phase
        self._spent_ns[interrupted] += now - self.since_ns
        self.phase = code
        self.since_ns = now
        # Time and phase in one word: a reader never finds one without the other.
        self.heartbeat[0] = now << 4 | code
        if now >= self._gate_ns:
            if self._timeline is not None and interrupted != code:
                self._timeline.boundary(now, code)
            if now >= self.due_ns or self._measures or self._timeline is None:
                self._pass_gate(now)
        return now

    def _pass_gate(self, now: int) -> None:
        if now >= self.due_ns:
            self.due_ns = self._callbacks.tick(now)
        if self._measures:
            self.own_ns += _clock() - now
        is_open = self._measures or self._held or self._timeline is not None
        self._gate_ns = 0 if is_open else self.due_ns

    def enter_phase(self, phase: str) -> None:
        """Ends the current phase and begins the named one.

        Raises:
            ValueError: no phase has that name.
        """
        try:
            code = CODE[phase]
        except KeyError:
            if not self.on:
                return
            code = code_of(phase)
        now = _clock()
        if now >= self._gate_ns:
            self.enter_code(code)
            return
        # As switch_phase does: a call less in what a loop does ten times a step.
        self._spent_ns[self.phase] += now - self.since_ns
        self.phase = code
        self.since_ns = now
        self.heartbeat[0] = now << 4 | code

    def phase_hook(self, phase: int) -> PhaseHook:
        """A hook that enters a phase, whatever it is called with."""
        return PhaseHook(self, phase)

    def first_arrival(self) -> None:
        """Notes that the rank has handed over its first gradients of the step."""
        if not self._first_arrival_ns:
            self._first_arrival_ns = _clock()
            if self.device_rows is not None:
                self.device_rows.timeline.arrival(self._first_arrival_ns)

    def wait_begins(self) -> int:
        """Begins a wait for other ranks; returns the phase to go on with then."""
        interrupted = self.phase
        if self._held or interrupted == SYNC or not self.on:
            return NOT_WAITING
        if self._timeline is not None and not self._timeline.is_on_stream():
            return NOT_WAITING  # a collective that is started in another stream: nobody waits
        now = self.switch_phase(SYNC)
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
        """Ends a wait; counts its collectives where they have a kind."""
        if interrupted == NOT_WAITING or self.phase != SYNC or not self.on:
            return
        try:
            begun = self.since_ns
            now = self.switch_phase(interrupted)
            if kind != "send_recv":  # which brings two ranks together, not the group
                # As if all waiting of the step had come last: docs/decisions/0006-*.md.
                self._last_arrival_ns = now - int(self._spent_ns[SYNC])
            seconds = (now - begun) * _NS
            if self.device_rows is not None:
                seconds = self.device_rows.hold_wait(kind, seconds)
            if kind is not None:
                self._page.count_collective(kind, calls, size_bytes, seconds)
                if ranks is not None:
                    bus_bytes = int(size_bytes * bus_factor(kind, ranks))
                    self._page.periodic.words[_BUS_BYTES[kind]] += bus_bytes
        except Exception as error:  # noqa: BLE001  # as guarded does, without its cost
            self._callbacks.fail(error)

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
        """Ends the step and writes its row; ``LoopCalls.step`` explains the arguments."""
        if not self.on:
            self._callbacks.step_while_off(step)
            return
        try:
            now = self.switch_phase(OTHER)
            number = self._take_step_number(step)
            flags, present, row_loss, row_norm = self._take_numbers(
                loss, gradient_norm, learning_rate
            )
            tokens, samples, lengths = self._take_counts(tokens, samples, sequence_lengths)
            numbers = (row_loss, row_norm, tokens, samples)
            steps, seconds = self._write_row(now, number, flags, present, numbers, lengths)
            if (
                steps >= self.wake_rows
                or number >= self.wake_step
                or now >= self.wake_ns
                or seconds > self.slow_seconds
                or not number & 255  # the running median of slow steps is due
            ):
                self._callbacks.step_ended(now, number, steps, seconds)
        except Exception as error:  # noqa: BLE001  # as guarded does, without its cost
            self._callbacks.fail(error)
