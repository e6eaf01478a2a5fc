"""Whether a process still runs, by /proc; pids are those of the agent's own pid namespace."""

import os
import time
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_ENDED_STATES = frozenset("ZXx")
_SLACK_SECONDS = 1.0


def _suspended_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def is_running(procfs: Path, pid: int, seen_monotonic_ns: int) -> bool:
    """Whether the process that had this pid at a monotonic time still runs.

    A zombie does not run, and a process that began later only took over the pid.
    """
    try:
        stat = (procfs / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except PermissionError:
        return True
    except OSError:
        return False
    state, *rest = stat.rpartition(")")[2].split()
    began_seconds = int(rest[18]) / _TICKS_A_SECOND
    # /proc counts from boot with suspension, CLOCK_MONOTONIC without
    latest_seconds = seen_monotonic_ns / 1e9 + _suspended_seconds() + _SLACK_SECONDS
    return state not in _ENDED_STATES and began_seconds <= latest_seconds
