"""What the monitor does seldom: about once a second, and never within a mark that is on time.

Here the page's periodic slot is filled: the collector's pauses, memory, checkpoints that other
threads ended, and what goes wrong around the monitor, which is said once and counted.
"""

import logging
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path

from lockstep.monitor.checkpoint_handles import Saved, write_saved
from lockstep.monitor.gc_pauses import Pauses
from lockstep.monitor.memory import Memory
from lockstep.monitor.out_of_memory import out_of_memory_in
from lockstep_records.attempts import highest_step_before
from lockstep_records.page.layout import PERIODIC, SLOT
from lockstep_records.page.writer import PageWriter

log = logging.getLogger("lockstep")

EVERY_NS = 1_000_000_000
_MEMORY_EVERY_NS = 10_000_000_000
_NO_STEP_TICKS = 60
_STEPS = SLOT.word("steps")
_COLLECTIONS = PERIODIC.word("collections")
_COLLECTION_SECONDS = PERIODIC.word("collection_seconds")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class PeriodicStats:
    """The periodic slot of a page and what fills it.

    Args:
        patience_seconds: that phases may be marked without a step before that is told.

    Attributes:
        step_before: highest step of an earlier attempt; -1 where none is known of.
    """

    def __init__(self, page: PageWriter, patience_seconds: float = 300.0) -> None:
        self._page, self.slots = page, page.periodic
        self._patience_ns = int(patience_seconds * 1e9)
        self._pauses, self._memory = Pauses(), Memory(page.periodic)
        self._ended: deque[Saved] = deque()
        self._thread = threading.get_ident()
        self._said: set[str] = set()
        self._memory_due_ns = 0
        self._steps, self._step_ns, self._ticks = -1, 0, 0
        self._page_was = page.path.stat().st_ino
        before = highest_step_before(page.path)
        self.step_before = -1 if before is None else before
        if before is not None:
            self.slots.know("step_before", before)
        age = _process_seconds()
        if age is not None:
            self.slots.know("process_seconds", age)

    def tick(self, now_ns: int) -> None:
        """A few microseconds; every ten seconds some twenty more for memory."""
        if now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + _MEMORY_EVERY_NS
            self._memory.sample()
            self._look_for_page()
        self._look_for_step(now_ns)
        self.commit(now_ns)

    def commit(self, now_ns: int) -> None:
        """Makes readable what has gathered."""
        while self._ended:
            write_saved(self._page, self._ended.popleft())
            self._page.commit(now_ns)
        self.slots.words[_COLLECTIONS] = self._pauses.collections
        self.slots.floats[_COLLECTION_SECONDS] = self._pauses.nanoseconds * 1e-9
        self.slots.commit(now_ns)

    def end_saving(self, saved: Saved) -> None:
        """Takes in a checkpoint that ended: at once, or with the next tick from another thread."""
        self._ended.append(saved)
        if threading.get_ident() == self._thread:
            self.commit(time.monotonic_ns())

    def tell(self, trouble: str, sentence: str, *, level: int = logging.WARNING) -> None:
        """Counts a trouble of the label ``trouble`` and says it if it is the first of its kind."""
        self.slots.count("troubles", trouble)
        if trouble not in self._said:
            self._said.add(trouble)
            log.log(level, "%s; training goes on", sentence)

    def tell_error(self, error: BaseException) -> bool:
        """Counts an error of the loop's that is memory running out; True where it is."""
        ran_out = out_of_memory_in(error)
        if ran_out is None or getattr(error, "lockstep_counted", False):
            return False
        error.lockstep_counted = True  # type: ignore[attr-defined]  # it may pass several spans
        self._memory.failed(on_device=ran_out.place == "GPU", asked_bytes=ran_out.asked_bytes)
        return True

    def close(self, now_ns: int) -> None:
        """Writes what is left and lets go of the process."""
        self._memory.sample()
        self.commit(now_ns)
        self._pauses.release()

    def _look_for_page(self) -> None:
        if self._page_was == 0:
            return
        try:
            there = self._page.path.stat().st_ino == self._page_was
        except OSError:
            there = False
        if not there:
            self._page_was = 0
            self.tell(
                "page_deleted",
                f"page {self._page.path} was deleted under the run: nobody can read it any more",
            )

    def _look_for_step(self, now_ns: int) -> None:
        """Phases that are marked again and again without a step: the loop forgets to end it."""
        steps = self._page.words[_STEPS]
        if steps != self._steps:
            self._steps, self._step_ns, self._ticks = steps, now_ns, 0
            return
        self._ticks += 1
        if self._ticks >= _NO_STEP_TICKS and now_ns - self._step_ns > self._patience_ns:
            self._step_ns, self._ticks = now_ns, 0
            self.tell(
                "no_step",
                f"phases are marked but no step has ended for {self._patience_ns / 1e9:.0f} s; "
                "call monitor.step() at the end of each step",
            )


def _process_seconds(stat: Path = Path("/proc/self/stat")) -> float | None:
    """Age of this process; None where the kernel does not say."""
    try:
        began = int(
            stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, IndexError, ValueError):
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began / _TICKS_A_SECOND)


def last_error() -> BaseException | None:
    """The error that ended the process, once the interpreter has told of it."""
    return getattr(sys, "last_value", None)
