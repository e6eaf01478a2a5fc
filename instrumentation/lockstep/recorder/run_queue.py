"""How long the loop's threads waited for a core, by the kernel's scheduler statistics.

A rank whose core other processes take is late without being slow itself. The kernel counts for
each thread the nanoseconds that it was ready to run and had to wait.
"""

import os

from lockstep_records.page.layout import PERIODIC
from lockstep_records.page.writer import PageWriter

# A read costs 13 microseconds once other work has filled the caches (bench/overhead/run_queue.py):
# steps shorter than this share one, which keeps it below 0.03 %.
RUN_QUEUE_EVERY_NS = 50_000_000
MAX_RUN_QUEUES = 16  # threads; the C code has room for so many
_NEVER = 1 << 62
_NS = 1e-9
_TEXT_BYTES = 96
_TOTAL = PERIODIC.word("run_queue_seconds")
_PRESENT, _TOTAL_BIT = PERIODIC.word("present"), PERIODIC.presence["run_queue_seconds"]


class RunQueueWait:
    """The waits that rows and totals of one page take in.

    Attributes:
        due_ns: monotonic nanoseconds from which on the end of a step takes them.
    """

    def __init__(self, page: PageWriter) -> None:
        self._page = page
        self._descriptors: tuple[int, ...] = ()
        self._waited_ns = -1  # unknown
        self.due_ns = _NEVER

    def watch(self, descriptors: tuple[int, ...]) -> None:
        """Reads these files, one a thread, from the end of the next step on."""
        if len(descriptors) > MAX_RUN_QUEUES:
            raise ValueError("descriptors must be a tuple of few integers")
        self._descriptors, self._waited_ns = descriptors, -1
        self.due_ns = 0 if descriptors else _NEVER

    def restart(self) -> None:
        """What was waited until the next read belongs to no step."""
        self._waited_ns = -1

    def take(self, now_ns: int) -> None:
        """Puts the wait since the last read into the next row and the total."""
        before, waited_ns = self._waited_ns, self._read()
        self._waited_ns = waited_ns
        self.due_ns = _NEVER if waited_ns < 0 else now_ns + RUN_QUEUE_EVERY_NS
        if before < 0 or waited_ns < before:
            return
        seconds = (waited_ns - before) * _NS
        self._page.add_to_row("run_queue_seconds", seconds)
        self._page.periodic.floats[_TOTAL] += seconds
        self._page.periodic.words[_PRESENT] |= _TOTAL_BIT

    def _read(self) -> int:
        """Nanoseconds that all threads have waited so far; -1 where one cannot be read."""
        try:
            # Nanoseconds on a core, nanoseconds on a run queue, time slices.
            return sum(
                int(os.pread(number, _TEXT_BYTES, 0).split()[1]) for number in self._descriptors
            )
        except (OSError, ValueError, IndexError):
            return -1
