"""Faults by which a rank ends: an exception, a crash, missing data, and trouble while it leaves."""

import atexit
import os
import signal
import sys
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Step, Target, Value

_MISSING = Path("/nowhere/data/shard-00017.bin")


@contextmanager
def _raise(fault: Fault, target: Target) -> Step:
    """Raises; with ``linger`` the traceback is printed first and the process stays for a while."""
    error = ValueError(f"made in step {target.batch[0]}: a sample has no label")
    if linger := fault.values["linger"]:
        try:
            raise error
        except ValueError:
            traceback.print_exc()
        sys.stderr.flush()
        # As a process does whose threads are stuck: its collectives stay open for the others.
        time.sleep(linger)
    raise error
    yield


@contextmanager
def _segfault(_fault: Fault, _target: Target) -> Step:
    os.kill(os.getpid(), signal.SIGSEGV)
    yield


@contextmanager
def _missing_data(_fault: Fault, _target: Target) -> Step:
    _MISSING.read_bytes()
    yield


@contextmanager
def _exit_crash(_fault: Fault, _target: Target) -> Step:
    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
    yield


@contextmanager
def _exit_hang(fault: Fault, _target: Target) -> Step:
    atexit.register(time.sleep, fault.values["duration"])
    yield


_DURATION = Value(name="duration", low=0.1, high=3600, default=60, sort="duration")
KINDS = (
    Kind(
        name="raise",
        in_step=_raise,
        values=(Value(name="linger", low=0, high=3600, default=0, sort="duration"),),
    ),
    Kind(name="segfault", in_step=_segfault),
    Kind(name="missing-data", in_step=_missing_data),
    Kind(name="exit-crash", in_step=_exit_crash),
    Kind(name="exit-hang", in_step=_exit_hang, values=(_DURATION,)),
)
