"""A rank that is gone from one moment to the next: signal 9 to itself."""

import os
import signal
from contextlib import contextmanager

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Step, Target


@contextmanager
def _kill(_fault: Fault, _target: Target) -> Step:
    os.kill(os.getpid(), signal.SIGKILL)
    yield


KIND = Kind(name="kill", in_step=_kill)
