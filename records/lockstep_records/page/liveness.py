"""Whether the process of a rank still runs, and its pid here, whatever PID namespace it is in.

The kernel answers by the lock on the page. The pid in the page is a number of the rank's own
namespace, where it may be that of another process here: it is used for pages without a lock only.
"""

import os
import re
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lockstep_records.page.lock import holder_of
from lockstep_records.page.reader import Page

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_ENDED_STATES = frozenset((b"Z", b"X", b"x"))
_MAX_BYTES = 4096
_MAX_LOCKS = 1 << 16  # any user may hold a million
_SLACK_SECONDS = 1.0
_PROC = Path("/proc")
_LOCK = re.compile(r"\d+: POSIX +ADVISORY +WRITE +(?P<pid>[1-9]\d*) \w+:\w+:(?P<inode>\d+) ")


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The running process of a rank; its pid is None where ``procfs`` does not show it."""

    pid: int | None


def find_process(page: Page, procfs: Path = _PROC) -> RankProcess | None:
    """The process of a rank, now; None when it has ended."""
    if not page.identity["locked"]:
        return _find_by_number(page, procfs)
    try:
        holder = holder_of(page.path)
    except FileNotFoundError:  # somebody deleted the page under a run
        return _find_by_number(page, procfs)
    except OSError:
        return None
    if holder is None:
        return None
    pid = holder.pid if holder.pid is not None else _locking_pid(page.path, procfs)
    return RankProcess(pid)


def _find_by_number(page: Page, procfs: Path) -> RankProcess | None:
    pid = page.identity["pid"]
    return (
        RankProcess(pid) if is_running(procfs, pid, page.identity["start_monotonic_ns"]) else None
    )


def _locking_pid(page: Path, procfs: Path) -> int | None:
    """The holder by the kernel's table of locks.

    It has the numbers of the namespace that ``procfs`` was mounted in, such as the host's in a
    container with a PID namespace of its own.
    """
    try:
        inode = str(page.lstat().st_ino)
        with (procfs / "locks").open(encoding="ascii", errors="replace") as lines:
            for line in islice(lines, _MAX_LOCKS):
                match = _LOCK.match(line)
                if match is not None and match["inode"] == inode:
                    return int(match["pid"])
    except OSError:
        return None
    return None


def is_running(procfs: Path, pid: int, seen_monotonic_ns: int) -> bool:
    """Whether the process with this pid at a monotonic time still runs, zombies not counted."""
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
    clock = time.clock_gettime
    suspended_seconds = clock(time.CLOCK_BOOTTIME) - clock(time.CLOCK_MONOTONIC)
    latest_seconds = seen_monotonic_ns / 1e9 + suspended_seconds + _SLACK_SECONDS
    return state not in _ENDED_STATES and started_seconds <= latest_seconds


def _read(path: str) -> bytes:
    # three system calls and no file object: it is read for each rank in each tick
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)
