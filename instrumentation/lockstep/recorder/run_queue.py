"""Time that the loop's threads had a core, or waited for one, by the kernel's statistics.

A rank whose core other processes take is late without being slow itself. The kernel counts for
each thread the nanoseconds that it ran, and those that it was ready to run and had to wait. A
process that was stopped did neither.
"""

import os

from lockstep_records.page.layout import PERIODIC
from lockstep_records.page.writer import PageWriter

# A read costs 13 microseconds once other work has filled the caches (docs/evidence/overhead.md):
# steps shorter than this share one, which keeps it below 0.03 %.
RUN_QUEUE_EVERY_NS = 50_000_000
MAX_RUN_QUEUES = 16  # threads; the C code has room for so many
_NEVER = 1 << 62
_NS = 1e-9
_TEXT_BYTES = 96
_PRESENT, _TOTAL_BIT = PERIODIC.word("present"), PERIODIC.presence["run_queue_seconds"]


class RunQueueWait:
    """The waits that rows and totals of one page take in."""

    def __init__(self, page: PageWriter) -> None:
        self._page = page
        self._descriptors: tuple[int, ...] = ()
        self._spent_ns: tuple[int, int] | None = None
        self._due_ns = _NEVER

    def watch(self, descriptors: tuple[int, ...]) -> None:
        """Reads these files, one a thread, from the end of the next step on."""
        if len(descriptors) > MAX_RUN_QUEUES:
            raise ValueError("descriptors must be a tuple of few integers")
        self._descriptors, self._spent_ns = descriptors, None
        self._due_ns = 0 if descriptors else _NEVER

    def restart(self) -> None:
        """What was spent until the next read belongs to no step."""
        self._spent_ns = None

    def take(self, now_ns: int) -> None:
        """Puts what was spent since the last read into the next row, and the wait into totals."""
        if now_ns < self._due_ns:
            return
        before, spent_ns = self._spent_ns, self._read()
        self._spent_ns = spent_ns
        self._due_ns = _NEVER if spent_ns is None else now_ns + RUN_QUEUE_EVERY_NS
        if before is None or spent_ns is None or spent_ns[1] < before[1]:
            return
        seconds = (spent_ns[1] - before[1]) * _NS
        self._page.add_to_row("run_queue_seconds", seconds)
        self._page.add_to_row("core_seconds", max(0, spent_ns[0] - before[0]) * _NS)
        self._page.periodic.add("run_queue_seconds", seconds)
        self._page.periodic.words[_PRESENT] |= _TOTAL_BIT

    def _read(self) -> tuple[int, int] | None:
        """Nanoseconds that all threads have had a core, and have waited; None where unreadable."""
        core_ns = waited_ns = 0
        try:
            for number in self._descriptors:
                # Nanoseconds on a core, nanoseconds on a run queue, time slices.
                numbers = os.pread(number, _TEXT_BYTES, 0).split()
                core_ns, waited_ns = core_ns + int(numbers[0]), waited_ns + int(numbers[1])
        except (OSError, ValueError, IndexError):
            return None
        return core_ns, waited_ns
