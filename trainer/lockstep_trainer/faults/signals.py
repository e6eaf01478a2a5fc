"""Faults by a signal that a rank sends to itself: killed, stopped for a while, or preempted."""

import os
import signal
import subprocess

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Target, Value, act_before_step

_CONTINUE_LATER = 'sleep "$1"; kill -CONT "$2"'
_STARTED_BY_A_LAUNCHER = "TORCHELASTIC_RUN_ID"


def _stop(fault: Fault, _target: Target) -> None:
    """Stops the rank; a stopped process runs nothing, so another process has to wake it."""
    arguments = (str(fault.values["duration"]), str(os.getpid()))
    # A session of its own, so that a signal to the job's group does not end the waking process.
    with subprocess.Popen(["sh", "-c", _CONTINUE_LATER, "sh", *arguments], start_new_session=True):
        os.kill(os.getpid(), signal.SIGSTOP)


def _preempt_job(_fault: Fault, _target: Target) -> None:
    # Without a launcher the parent is somebody's shell, and the rank is the whole job.
    is_launched = _STARTED_BY_A_LAUNCHER in os.environ
    os.kill(os.getppid() if is_launched else os.getpid(), signal.SIGTERM)


KINDS = (
    Kind(
        name="stop",
        in_step=act_before_step(_stop),
        # Below 100 ms the waking process could be done before the rank has stopped.
        values=(Value(name="duration", low=0.1, high=3600, default=5, sort="duration"),),
    ),
    Kind(name="kill", in_step=act_before_step(lambda *_: os.kill(os.getpid(), signal.SIGKILL))),
    Kind(name="preempt", in_step=act_before_step(lambda *_: os.kill(os.getpid(), signal.SIGTERM))),
    Kind(name="preempt-job", in_step=act_before_step(_preempt_job)),
)
