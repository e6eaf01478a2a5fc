"""The monitor while a switch has turned it off: steps only look whether it is to go on."""

import time
from typing import Any

from lockstep.guard import guarded
from lockstep.monitor import Monitor
from lockstep.phases import NUM_PHASES, OTHER


class Paused(Monitor):
    """A monitor that is off until somebody turns it on again.

    The pulse goes on, a mark a step, so that nobody takes the rank for one that hangs. Checkpoints
    count; the seconds spent meanwhile are nobody's.
    """

    enabled = False

    def _cut(self, code: int) -> int:
        del code
        return time.monotonic_ns()

    def mark(self, phase: str) -> None:
        """Nothing."""

    @guarded
    def step(self: Monitor, /, *, step: int | None = None, **_: Any) -> None:
        """Ends a step of which nothing is written."""
        now = time.monotonic_ns()
        number = self._next_step if step is None else step
        self._next_step = number + 1
        self.pulse[0] = now << 4 | OTHER
        self.each_step(now, number)

    def close(self, *, failed: bool = False) -> None:
        """Says that the rank is done, or that it failed."""
        turn(self, on=True, now_ns=time.monotonic_ns())
        self.close(failed=failed)


def turn(monitor: Monitor, *, on: bool, now_ns: int) -> None:
    """Turns a monitor off or on at a step's end; time counts from now on."""
    monitor._spent_ns = [0] * NUM_PHASES  # noqa: SLF001  # the same object, as it is from now on
    monitor._now_in = OTHER  # noqa: SLF001  # the same
    monitor._since_ns = now_ns  # noqa: SLF001  # the same
    monitor._first_arrival_ns = monitor._last_arrival_ns = 0  # noqa: SLF001  # the same
    monitor.__class__ = Monitor if on else Paused
