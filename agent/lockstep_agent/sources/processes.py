"""Whether a process still runs, by /proc; pids are those of the agent's own pid namespace."""

import os
import time
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_ENDED_STATES = frozenset((b"Z", b"X", b"x"))
_MOST_BYTES = 4096
_SLACK_SECONDS = 1.0


def _suspended_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _read(path: str) -> bytes:
    """A file of /proc in three calls: it is read for each rank in each tick."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)


def is_running(procfs: Path, pid: int, seen_monotonic_ns: int) -> bool:
    """Whether the process that had this pid at a monotonic time still runs.

    A zombie does not run, and a process that began later only took over the pid.
    """
    try:
        stat = _read(f"{procfs}/{pid}/stat")
    except PermissionError:
        return True
    except OSError:
        return False
    state, *rest = stat.rpartition(b")")[2].split()
    began_seconds = int(rest[18]) / _TICKS_A_SECOND
    # /proc counts from boot with suspension, CLOCK_MONOTONIC without
    latest_seconds = seen_monotonic_ns / 1e9 + _suspended_seconds() + _SLACK_SECONDS
    return state not in _ENDED_STATES and began_seconds <= latest_seconds
