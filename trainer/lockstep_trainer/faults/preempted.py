"""Preemption: SIGTERM to one rank, or to the whole job by way of the process that started it."""

import os
import signal
from contextlib import contextmanager

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Step, Target

_STARTED_BY_A_LAUNCHER = "TORCHELASTIC_RUN_ID"


@contextmanager
def _preempt(_fault: Fault, _target: Target) -> Step:
    os.kill(os.getpid(), signal.SIGTERM)
    yield


@contextmanager
def _preempt_job(_fault: Fault, _target: Target) -> Step:
    # Without a launcher the parent is somebody's shell, and the rank is the whole job.
    launched = _STARTED_BY_A_LAUNCHER in os.environ
    os.kill(os.getppid() if launched else os.getpid(), signal.SIGTERM)
    yield


KINDS = (Kind(name="preempt", in_step=_preempt), Kind(name="preempt-job", in_step=_preempt_job))
