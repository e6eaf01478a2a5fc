"""The monitor's work of about once a second, in the first phase change after it is due.

It fills the page's periodic slot: pauses of the garbage collector, memory, checkpoints that other
threads ended, and trouble around the monitor, which is logged once and counted.
"""

import contextlib
import gc
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from lockstep.guard import Parts
from lockstep.monitor.checkpoint_handles import Saved, write_saved
from lockstep.monitor.memory import Memory, out_of_memory_in
from lockstep.recorder.batches import fetched_ahead
from lockstep_records.files.jobs import highest_step_before
from lockstep_records.page.layout import PERIODIC, SLOT
from lockstep_records.page.writer import PageWriter
from lockstep_records.text.durations import format_duration


class Pauses:
    """Counts from its creation until it is released or garbage itself, in the row of a step too."""

    def __init__(self, page: PageWriter) -> None:
        self._page = page
        self.collections = self.nanoseconds = 0
        self._began_ns = 0
        reference = weakref.ref(self)  # gc.callbacks would keep it, and its page, for ever

        def count_collection(phase: str, _info: dict[str, Any]) -> None:
            pauses = reference()
            if pauses is not None:
                pauses.count(phase)

        gc.callbacks.append(count_collection)
        self._remove_callback = weakref.finalize(self, _remove, count_collection)

    def count(self, phase: str) -> None:
        """Counts the begin (``start``) or the end of a run."""
        if phase == "start":
            self._began_ns = time.monotonic_ns()
        elif self._began_ns:
            self.collections += 1
            taken_ns = time.monotonic_ns() - self._began_ns
            self.nanoseconds += taken_ns
            with contextlib.suppress(ValueError):  # the page is closed
                self._page.add_to_row("collection_seconds", taken_ns * 1e-9)

    def release(self) -> None:
        """Stops counting."""
        self._remove_callback()


def _remove(callback: Any) -> None:
    if callback in gc.callbacks:
        gc.callbacks.remove(callback)


log = logging.getLogger("lockstep")

EVERY_NS = 1_000_000_000
_MEMORY_EVERY_NS = 10_000_000_000
_NO_STEP_TICKS = 60
_STEPS = SLOT.word("steps")
_COLLECTIONS = PERIODIC.word("collections")
_COLLECTION_SECONDS = PERIODIC.word("collection_seconds")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class PeriodicStats:
    """The periodic slot of a page and what fills it.

    Args:
        no_step_timeout_seconds: phases may be entered so long without a step before it is reported.

    Attributes:
        step_before: highest step of an earlier attempt; -1 where there is none.
    """

    def __init__(
        self, page: PageWriter, no_step_timeout_seconds: float = 300.0, parts: Parts | None = None
    ) -> None:
        self._page, self.slots = page, page.periodic
        self._parts = parts = parts or Parts()
        self._no_step_timeout_ns = int(no_step_timeout_seconds * 1e9)
        self._pauses = parts.run("garbage_collection", Pauses, page)
        self._memory = Memory(page.periodic)
        self._ended: deque[Saved] = deque()
        self._thread = threading.get_ident()
        self._logged: set[str] = set()
        self._memory_due_ns = 0
        self._steps, self._step_ns, self._ticks = -1, 0, 0
        self._page_inode = parts.run("page_check", _inode_of, page.path) or 0
        before = parts.run("earlier_attempts", highest_step_before, page.path)
        self.step_before = -1 if before is None else before
        if before is not None:
            self.slots.know("step_before", before)
        age = parts.run("process_age", _process_seconds)
        if age is not None:
            self.slots.know("process_seconds", age)

    def tick(self, now_ns: int) -> None:
        """Samples what is due; a few microseconds, and some twenty more every ten seconds."""
        if now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + _MEMORY_EVERY_NS
            self._parts.run("memory", self._memory.sample)
            self._parts.run("page_check", self._check_page)
        self._parts.run("loop_check", self._check_steps, now_ns)
        self._parts.run("page_check", self._page.lock.renew)
        self.commit(now_ns)

    def commit(self, now_ns: int) -> None:
        """Makes readable what has gathered since the last commit."""
        while self._ended:
            self._parts.run("checkpoints", write_saved, self._page, self._ended.popleft())
            self._page.commit(now_ns)
        if self._pauses is not None:
            self.slots.words[_COLLECTIONS] = self._pauses.collections
            self.slots.floats[_COLLECTION_SECONDS] = self._pauses.nanoseconds * 1e-9
        if fetched_ahead.batches:
            self.slots.know("loader_workers", fetched_ahead.workers)
            self.slots.know("batches_ahead", fetched_ahead.batches)
        self.slots.commit(now_ns)

    def end_saving(self, saved: Saved) -> None:
        """Counts a checkpoint that ended: at once, or with the next tick from another thread."""
        self._ended.append(saved)
        # The page has one writer, the loop's thread; another would tear the slot.
        if threading.get_ident() == self._thread:
            self.commit(time.monotonic_ns())

    def report_trouble(self, trouble: str, sentence: str, *, level: int = logging.WARNING) -> None:
        """Counts a trouble of the label ``trouble``, and logs the first of its kind."""
        self.slots.count("troubles", trouble)
        if trouble not in self._logged:
            self._logged.add(trouble)
            log.log(level, "%s; training goes on", sentence)

    def count_out_of_memory(self, error: BaseException) -> bool:
        """Counts an error of the loop's if it is memory running out; True where it is."""
        shortage = out_of_memory_in(error)
        if shortage is None or getattr(error, "lockstep_counted", False):
            return False
        error.lockstep_counted = True  # type: ignore[attr-defined]  # it may leave several blocks
        self._memory.count_failure(
            on_device=shortage.memory == "GPU", requested_bytes=shortage.requested_bytes
        )
        return True

    def close(self, now_ns: int) -> None:
        """Writes what is left and lets go of the process."""
        self._parts.run("memory", self._memory.sample)
        if self._pauses is not None:
            self._parts.run("garbage_collection", self._pauses.release)
        self.commit(now_ns)
        fetched_ahead.workers = fetched_ahead.batches = 0  # the next monitor's loop has its own

    def _check_page(self) -> None:
        if self._page_inode == 0:
            return
        try:
            is_present = _inode_of(self._page.path) == self._page_inode
        except OSError:
            is_present = False
        if not is_present:
            self._page_inode = 0
            self.report_trouble(
                "page_deleted",
                f"page {self._page.path} was deleted under the run: nobody can read it any more",
            )

    def _check_steps(self, now_ns: int) -> None:
        """Phases that begin again and again without a step: the loop forgets to end it."""
        steps = self._page.words[_STEPS]
        if steps != self._steps:
            self._steps, self._step_ns, self._ticks = steps, now_ns, 0
            return
        # Ticks count besides the time: a first step that compiles for long has no ticks in it.
        self._ticks += 1
        if self._ticks >= _NO_STEP_TICKS and now_ns - self._step_ns > self._no_step_timeout_ns:
            self._step_ns, self._ticks = now_ns, 0
            timeout = format_duration(self._no_step_timeout_ns / 1e9)
            self.report_trouble(
                "no_step",
                f"phases are entered but no step has ended for {timeout}; "
                "call monitor.step() at the end of each step",
            )


def _inode_of(path: Path) -> int:
    return path.stat().st_ino


def _process_seconds(stat: Path = Path("/proc/self/stat")) -> float | None:
    """Age of this process; None where the kernel does not say."""
    try:
        # The name before the last bracket may hold blanks and brackets; starttime is field 22.
        after_name = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        began_ticks = int(after_name.split()[19])
    except (OSError, IndexError, ValueError):
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / _TICKS_PER_SECOND)


def last_error() -> BaseException | None:
    """The exception that ended the process; None before the interpreter has printed one."""
    return getattr(sys, "last_value", None)
