"""What a loop and its hooks call in every step, and the recorders that write no row for it."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockstep.guard import guarded
from lockstep.recorder.phases import NOT_WAITING, OTHER
from lockstep.recorder.recorder import StepRecorder


class LoopCalls(Protocol):
    """Calls of the hot path: phases, waits and the end of a step."""

    def enter_phase(self, phase: str) -> None:
        """Ends the current phase and begins the named one.

        Raises:
            ValueError: no phase has that name.
        """

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
                would have to be waited for: it is read some steps later.
            gradient_norm: norm before clipping; the same kinds.
            learning_rate: learning rate of the step.
            tokens: tokens of this rank in the step; the sum of the lengths when left out.
            samples: samples of this rank in the step; as many as lengths when left out.
            sequence_lengths: tokens of each sequence of this rank in the step.
        """


class Recorder(LoopCalls, Protocol):
    """A recorder in any of its states: recording, suspended or off.

    Attributes:
        on: whether rows are written.
    """

    on: bool

    def switch_phase(self, code: int) -> int:
        """Ends the current phase and begins another; returns the monotonic nanoseconds."""


class NoopRecorder:
    """Records nothing: a monitor that is off, closed, or in a forked child holds it."""

    on = False

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        """Takes any call."""

    enter_phase = enter_code = first_arrival = wait_ended = step = _do_nothing

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
