"""Interface of a recorder: calls of the loop, callbacks, and the stand-ins that write no row."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from lockstep.guard import guarded
from lockstep.recorder.device import Device, LateRow
from lockstep.recorder.phases import NOT_WAITING, OTHER

NEVER = 1 << 62  # nanoseconds or steps
MAX_RUN_QUEUES = 16  # threads; the C code has room for so many
# A read costs 13 microseconds once other work has filled the caches (docs/evidence/overhead.md):
# steps shorter than this share one, which keeps it below 0.03 %.
RUN_QUEUE_EVERY_NS = 50_000_000
LOSSES = 128  # buffered until they are taken: more than a window of the judge
StepPassed: TypeAlias = Callable[[Sequence[int], Sequence[int]], object]
"""Takes the monotonic nanoseconds of a step's boundaries and the phases between them."""


class Ignored:
    """What a copy of a watched model or optimizer has in the place of a hook."""

    def __call__(self, *_: Any) -> None:
        """Does nothing."""


class RecorderCallbacks(Protocol):
    """What a recorder calls when one comparison says that something is due or unusual."""

    def tick(self, now_ns: int) -> int:
        """A phase began after ``due_ns``; returns the next one."""

    def inspect_loss(self, loss: float) -> int:
        """A loss is not within ``loss_floor`` and ``loss_bound``; returns the step's flags."""

    def inspect_norm(self, norm: float) -> int:
        """A gradient norm is one that no row can hold; returns the step's flags."""

    def inspect_step(self, number: int, seconds: Sequence[float]) -> int:
        """A step took longer than ``usual_seconds``, by phase; returns its flags."""

    def late_numbers(self, rows: Sequence[LateRow]) -> bool:
        """Numbers of earlier steps have come from a device; returns whether more are wanted."""

    def part_failed(self, part: str, error: Exception) -> None:
        """A part has failed, such as reading a number of the loop's; the step goes on."""

    def step_ended(self, now_ns: int, number: int, steps: int, seconds: float) -> None:
        """A row is written; the step is slow, or one of ``wake_*`` is due."""

    def step_while_off(self, number: int | None) -> None:
        """The loop ended a step while the recorder is off."""

    def fail(self, error: Exception) -> None:
        """An error of ours was caught in the loop."""


class PhaseHook(Protocol):
    """A hook that enters one phase, and calls ``callback`` but in a range of quiet steps."""

    callback: Callable[..., object] | None
    quiet_from: int
    quiet_until: int

    def __call__(self, *args: Any) -> None:
        """Enters the phase, then calls the callback."""


class LoopCalls(Protocol):
    """Calls of the hot path: phases, waits and the end of a step."""

    def enter_phase(self, phase: str) -> None:
        """Ends the current phase and begins the named one; ValueError for an unknown one."""

    def enter_code(self, code: int) -> None:
        """The same by the phase's code; what hooks call."""

    def first_arrival(self) -> None:
        """Notes that the rank has handed over its first gradients of the step."""

    def wait_begins(self) -> int:
        """Begins a wait for other ranks; returns what ``wait_ended`` takes as ``interrupted``."""

    def wait_ended(
        self,
        interrupted: int,
        kind: str | None,
        calls: int = 1,
        size_bytes: int = 0,
        ranks: int | None = None,
    ) -> None:
        """Ends a wait and counts its collectives.

        Args:
            interrupted: the phase to go on with, from ``wait_begins``.
            kind: kind of collective; None for a wait that is not counted.
            calls: number of collectives.
            size_bytes: bytes of all of them.
            ranks: size of the group; None where unknown.
        """

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
                would have to be waited for: it is read within a second.
            gradient_norm: norm before clipping; the same kinds.
            learning_rate: learning rate of the step.
            tokens: tokens of this rank in the step; when left out the sum of the lengths, or of
                the batches' ``input_ids`` without padding.
            samples: samples of this rank in the step; when left out as many as lengths, or as the
                batches have.
            sequence_lengths: tokens of each sequence of this rank in the step.
        """


class Recorder(LoopCalls, Protocol):
    """A recorder in any of its states: recording (``on``), suspended or off."""

    on: bool

    def switch_phase(self, code: int) -> int:
        """Ends the current phase and begins another; returns the monotonic nanoseconds."""


class StepRecorder(Recorder, Protocol):
    """Writes one rank's page; every method is safe to call at any time, from the loop's thread.

    Attributes:
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
        flags: of the step that runs now, so far.
        loss_floor, loss_bound: a loss above the one and up to the other needs no judgement.
        lasting_flags: of each step with such a loss.
        usual_seconds: a step up to that long needs no judgement.
        slow_seconds: a step up to that long has no span.
        uses_device: whether steps are timed on a device.
        batch_samples, batch_tokens: of the batches of the step that runs now, so far.
        counts_batches: whether these are needed, as the loop tells less than they do.
    """

    batch_samples: int
    batch_tokens: int
    counts_batches: bool
    held: bool
    measures: bool
    own_ns: int
    phase: int
    since_ns: int
    due_ns: int
    wake_rows: int
    wake_step: int
    wake_ns: int
    heartbeat: Any
    next_step: int
    flags: int
    loss_floor: float
    loss_bound: float
    lasting_flags: int
    usual_seconds: float
    slow_seconds: float
    uses_device: bool

    def phase_hook(self, phase: int) -> PhaseHook:
        """A hook that enters a phase, whatever it is called with."""

    def stop(self) -> None:
        """Writes nothing from now on."""

    def restart(self, now_ns: int) -> None:
        """Writes again; time counts from now on, within a step."""

    def release(self) -> None:
        """Releases the page, which can be closed from then on."""

    def take_losses(self) -> list[float]:
        """The last losses that needed no judgement, at most ``LOSSES``, each returned once."""

    def take_phases(self) -> None:
        """Adds the seconds of the running step's phases to the totals."""

    def watch_run_queue(self, descriptors: tuple[int, ...]) -> None:
        """Records what threads wait for a core; files of the kernel, one a thread."""

    def watch_stops(self) -> None:
        """Records from now on for how long the process is stopped."""

    def use_device(self, device: Device, /) -> None:
        """Times steps on a device from now on, and reads numbers that are on it.

        Each step is timed whose number the stride divides, a power of two by which the calls of
        the device stay within its allowance.
        """

    def is_device_busy(self) -> bool | None:
        """Whether the loop's stream has work before it; None where unknown. From any thread."""

    def call_when_passed(self, callback: StepPassed, /) -> None:
        """Has it called once the device has passed the step that ended last, if it ever has."""

    def settle(self) -> None:
        """Takes all steps into the totals that still wait for the device; waits for none."""


class NoopRecorder:
    """Records nothing: a monitor that is off, closed, or in a forked child holds it."""

    on = False

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        """Takes any call."""

    enter_phase = enter_code = first_arrival = wait_ended = step = is_device_busy = _do_nothing

    def switch_phase(self, code: int) -> int:
        """Returns 0: a block may end after the monitor has turned off within it."""
        del code
        return 0

    def wait_begins(self) -> int:
        """Returns that no wait began."""
        return NOT_WAITING


class SuspendedRecorder(NoopRecorder):
    """Stands in while a switch has the monitor off: it writes no rows and keeps the heartbeat.

    Without the heartbeat the agent would take the rank for one that hangs. The seconds spent
    meanwhile belong to no phase.

    Args:
        step_ended: called with monotonic nanoseconds and number of each step; it polls the switch.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        step_ended: Callable[[int, int], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._recorder, self._step_ended, self.fail = recorder, step_ended, fail

    def switch_phase(self, code: int) -> int:
        """Returns the monotonic nanoseconds; blocks still have spans while suspended."""
        del code
        return time.monotonic_ns()

    def step(self, *, step: int | None = None, **_not_recorded: Any) -> None:
        """Ends a step of which only the number counts."""
        self._end_step(step)

    @guarded
    def _end_step(self, step: int | None) -> None:
        now_ns, recorder = time.monotonic_ns(), self._recorder
        number = recorder.next_step if step is None else step
        recorder.next_step = number + 1
        recorder.heartbeat[0] = now_ns << 4 | OTHER
        self._step_ended(now_ns, number)
