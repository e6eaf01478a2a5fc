"""Faults by which a rank ends: an exception, a crash, missing data, and trouble while it leaves."""

import atexit
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Target, Value, act_before_step

_MISSING = Path("/nowhere/data/shard-00017.bin")


def _raise(fault: Fault, target: Target) -> None:
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


def _read_missing_data(_fault: Fault, _target: Target) -> None:
    _MISSING.read_bytes()


def _crash_at_exit(_fault: Fault, _target: Target) -> None:
    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)


def _hang_at_exit(fault: Fault, _target: Target) -> None:
    atexit.register(time.sleep, fault.values["duration"])


_DURATION = Value(name="duration", low=0.1, high=3600, default=60, sort="duration")
KINDS = (
    Kind(
        name="raise",
        in_step=act_before_step(_raise),
        values=(Value(name="linger", low=0, high=3600, default=0, sort="duration"),),
    ),
    Kind(name="segfault", in_step=act_before_step(lambda *_: os.kill(os.getpid(), signal.SIGSEGV))),
    Kind(name="missing-data", in_step=act_before_step(_read_missing_data)),
    Kind(name="exit-crash", in_step=act_before_step(_crash_at_exit)),
    Kind(name="exit-hang", in_step=act_before_step(_hang_at_exit), values=(_DURATION,)),
)
