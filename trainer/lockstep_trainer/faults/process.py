"""Faults of a rank's process: signals, exceptions, trouble while it leaves, a wrong start."""

import atexit
import os
import signal
import subprocess
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from lockstep_trainer.faults.kind import Environment, Fault, Kind, Target, Value, act_before_step

_CONTINUE_LATER = 'sleep "$1"; kill -CONT "$2"'
_LAUNCHER_VARIABLE = "TORCHELASTIC_RUN_ID"


def _stop(fault: Fault, _target: Target) -> None:
    """Stops the rank; a stopped process runs nothing, so another process has to wake it."""
    arguments = (str(fault.values["duration"]), str(os.getpid()))
    # A session of its own, so that a signal to the job's group does not end the waking process.
    with subprocess.Popen(["sh", "-c", _CONTINUE_LATER, "sh", *arguments], start_new_session=True):
        os.kill(os.getpid(), signal.SIGSTOP)


def _preempt_job(_fault: Fault, _target: Target) -> None:
    # Without a launcher the parent is somebody's shell, and the rank is the whole job.
    is_launched = _LAUNCHER_VARIABLE in os.environ
    os.kill(os.getppid() if is_launched else os.getpid(), signal.SIGTERM)


SIGNAL_KINDS = (
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
END_KINDS = (
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


_MAX_RANKS = 1_000_000


def _replace(name: str, fault: Fault, environment: Environment) -> Environment:
    return {**environment, name: f"{fault.values['value']:.0f}"}


WORLD_KINDS = tuple(
    Kind(
        name=kind,
        at_start=partial(_replace, name),
        values=(Value(name="value", low=low, high=_MAX_RANKS, sort="whole number"),),
    )
    for kind, name, low in (("wrong-rank", "RANK", 0), ("wrong-world-size", "WORLD_SIZE", 1))
)
