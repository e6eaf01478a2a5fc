"""Whether a process still runs, by /proc; pids are those of the agent's own pid namespace."""

import os
import time
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_ENDED_STATES = frozenset((b"Z", b"X", b"x"))
_MAX_BYTES = 4096
_SLACK_SECONDS = 1.0


def is_running(procfs: Path, pid: int, seen_monotonic_ns: int) -> bool:
    """Whether the process that had this pid at a monotonic time still runs.

    Args:
        procfs: path of /proc.
        pid: the process.
        seen_monotonic_ns: ``CLOCK_MONOTONIC`` at which the process had this pid.

    Returns:
        False for a zombie, and for a later process that took over the pid.
    """
    try:
        stat = _read(f"{procfs}/{pid}/stat")
    except PermissionError:
        return True
    except OSError:
        return False
    # from the last bracket on: the name of the process may hold blanks and brackets of its own
    state, *fields = stat.rpartition(b")")[2].split()
    started_seconds = int(fields[18]) / _TICKS_PER_SECOND
    # /proc counts from boot with suspension, CLOCK_MONOTONIC without
    latest_seconds = seen_monotonic_ns / 1e9 + _suspended_seconds() + _SLACK_SECONDS
    return state not in _ENDED_STATES and started_seconds <= latest_seconds


def _suspended_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _read(path: str) -> bytes:
    # three system calls and no file object: it is read for each rank in each tick
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)
