"""Which threads run the loop, and the kernel's files that say how long they waited for a core.

They are the thread that calls the monitor and, with a GPU, those in which autograd runs the
backward meanwhile: the two take turns, so their waits add up. Threads of collectives and loaders
have no part in a rank's own work.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

from lockstep.recorder.run_queue import MAX_RUN_QUEUES

_AUTOGRAD = b"pt_autograd_"
_BUSY_NS = 10_000_000
_FIRST_PAUSE_NS = 1_000_000_000
_LONGEST_PAUSE_NS = 64_000_000_000


class LoopThreads:
    """Open files of the loop's threads; called from the loop's thread.

    Args:
        tasks: a folder for each thread of this process.
    """

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._descriptors: dict[int, int] = {}  # by thread
        self._due_ns, self._pause_ns = 0, _FIRST_PAUSE_NS
        self._loop = 0

    def poll(self, now_ns: int) -> tuple[int, ...] | None:
        """Descriptors of their ``schedstat``; None where they are those of the call before."""
        loop = threading.get_native_id()
        if loop == self._loop and now_ns < self._due_ns:
            return None
        # Listing hundreds of threads takes a millisecond, and new ones come early if ever.
        self._due_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)
        self._loop = loop
        threads = (loop, *self._autograd_threads(loop))[:MAX_RUN_QUEUES]
        if threads == tuple(self._descriptors):
            return None
        self.close()
        for thread in threads:
            descriptor = _open(self._tasks / str(thread) / "schedstat")
            if descriptor is not None:
                self._descriptors[thread] = descriptor
        return tuple(self._descriptors.values()) if loop in self._descriptors else ()

    def _autograd_threads(self, loop: int) -> list[int]:
        with suppress(OSError):
            folders = [folder for folder in self._tasks.iterdir() if _runs_backward(folder)]
            return sorted({int(folder.name) for folder in folders} - {loop})
        return []

    def close(self) -> None:
        """Closes the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}


def _runs_backward(thread: Path) -> bool:
    """Whether a thread of autograd has done work; there is one for each device, used or not."""
    try:
        name = (thread / "comm").read_bytes()
        return name.startswith(_AUTOGRAD) and _core_ns(thread / "schedstat") >= _BUSY_NS
    except (OSError, ValueError):
        return False  # it has ended meanwhile


def _core_ns(schedstat: Path) -> int:
    return int(schedstat.read_bytes().partition(b" ")[0])


def _open(schedstat: Path) -> int | None:
    """A descriptor of the file; None where the kernel counts nothing."""
    try:
        # A kernel without these statistics has the file, full of zeros; these threads have run.
        if _core_ns(schedstat) > 0:
            return os.open(schedstat, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        pass
    return None
