"""The monitor while a switch has turned it off: steps only look whether it is to go on."""

import time

from lockstep.guard import guarded
from lockstep.monitor.live import LiveMonitor
from lockstep.recorder.phases import OTHER


class SuspendedMonitor(LiveMonitor):
    """A monitor whose recorder is off until somebody turns it on again.

    The heartbeat goes on, once a step, so that nobody takes the rank for one that hangs.
    Checkpoints count; the seconds spent meanwhile are nobody's.
    """

    enabled = False

    def _switch_phase(self, code: int) -> int:
        del code
        return time.monotonic_ns()

    @guarded
    def step_while_off(self, number: int | None) -> None:
        """Ends a step of which nothing is written."""
        now, recorder = time.monotonic_ns(), self.recorder
        ended = recorder.next_step if number is None else number
        recorder.next_step = ended + 1
        recorder.heartbeat[0] = now << 4 | OTHER
        self.each_step(now, ended)

    def close(self, *, failed: bool = False) -> None:
        """Says that the rank is done, or that it failed."""
        turn(self, on=True, now_ns=time.monotonic_ns())
        self.close(failed=failed)


def turn(monitor: LiveMonitor, *, on: bool, now_ns: int) -> None:
    """Turns a monitor off or on at a step's end; time counts from now on."""
    if on:
        monitor.recorder.restart(now_ns)
    else:
        monitor.recorder.stop()
    monitor.__class__ = LiveMonitor if on else SuspendedMonitor
