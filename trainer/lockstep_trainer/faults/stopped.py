"""A rank that stands still and goes on: SIGSTOP to itself, SIGCONT by a process of its own."""

import os
import signal
import subprocess
from contextlib import contextmanager

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Step, Target, Value

_CONTINUE = 'sleep "$1"; kill -CONT "$2"'


@contextmanager
def _stop(fault: Fault, _target: Target) -> Step:
    told = (str(fault.values["seconds"]), str(os.getpid()))
    with subprocess.Popen(["sh", "-c", _CONTINUE, "sh", *told], start_new_session=True):
        os.kill(os.getpid(), signal.SIGSTOP)
    yield


# Below a tenth of a second the helper could be through before the rank has stopped.
KIND = Kind(
    name="stop", in_step=_stop, values=(Value(name="seconds", low=0.1, high=3600, default=5),)
)
