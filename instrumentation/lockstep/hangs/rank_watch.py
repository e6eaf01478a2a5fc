"""Hang watch of a rank: writes its stacks next to the page when no step ends.

A thread of C has faulthandler write the stacks. It needs no lock of the interpreter, so a thread
that holds the GIL for good does not stop it, and it sleeps until its time has come. The launcher
fetches the Flight Recorder from outside, from torch's worker server on a private socket:
see ``lockstep.hangs.node_watch``.
"""

import faulthandler
import logging
import os
import signal
import statistics
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from lockstep.guard import Parts
from lockstep.hangs.worker_server import shut_down, start_worker_server
from lockstep.recorder.native import compiled
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_outcomes.progress.hangs import (
    HangTimeouts,
    RankProgress,
    hang_limit_seconds,
    write_progress,
)
from lockstep_outcomes.progress.missing import Device, Launched
from lockstep_records.file_access.own_files import open_own_file
from lockstep_records.files.worker_socket import socket_path
from lockstep_records.page.reader import PageError, PageReader

_POLLS_PER_LIMIT = 8
_MAX_POLL_SECONDS = 10.0
_MAX_GROUPS = 64
_DEVICE_WORDS: dict[bool | None, Device | None] = {True: "pending", False: "passed", None: None}


class ProgressWatch:
    """A thread that writes a rank's progress beside its page once the rank stands.

    ``limit_seconds`` is the time-out of a hang, as it is now; 0 asks nothing. ``is_device_busy`` is
    whether the loop's stream has work before it; None where unknown.
    """

    def __init__(
        self,
        page: Path,
        limit_seconds: Callable[[], float],
        is_device_busy: Callable[[], bool | None],
        parts: Parts,
    ) -> None:
        self._reader, self._limit_seconds, self._parts = PageReader(page), limit_seconds, parts
        self._is_device_busy = is_device_busy
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread with its next poll."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_seconds()):
            if self._parts.run("hang_watch", self.poll, time.monotonic_ns()) is None:
                return

    def _interval_seconds(self) -> float:
        limit = self._limit_seconds() or _POLLS_PER_LIMIT * _MAX_POLL_SECONDS
        return min(_MAX_POLL_SECONDS, limit / _POLLS_PER_LIMIT)

    def poll(self, now_ns: int) -> bool:
        """Writes the progress of a rank that stands; whether it does."""
        limit = self._limit_seconds()
        try:
            page = self._reader.read()
        except PageError:  # somebody deleted it under the run
            return False
        idle_seconds = (now_ns - page.progress_ns) / 1e9
        if not limit or idle_seconds < limit / 2 or page.phase in ENDED_PHASES:
            return False
        device = _DEVICE_WORDS[self._is_device_busy()]
        progress = RankProgress(device=device, launched=_ask_groups())
        write_progress(page, progress)
        return True


def _ask_groups() -> dict[str, Launched]:
    """How many collectives this process has launched in each of its groups."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    names = getattr(getattr(distributed, "_world", None), "pg_names", {})
    launched = {}
    for group, name in list(names.items())[:_MAX_GROUPS]:
        try:
            number = int(group._get_sequence_number_for_group())  # noqa: SLF001  # torch has no other
        except (AttributeError, RuntimeError):  # a backend that counts none
            continue
        launched[str(name)] = Launched(number)
    return launched


log = logging.getLogger("lockstep")
STACKS_SUFFIX = ".stacks"
# Arming the timer costs some 60 microseconds, so it is armed once in an eighth of the limit and not
# in each step, and fires up to an eighth late.
_ARMS_PER_LIMIT = 8
_MAX_STACKS_BYTES = 4 << 20
_MEDIAN_STEPS = 64


class HangWatch:
    """Keeps faulthandler's timer ahead of the steps, and torch's worker server open.

    There is one such timer a process. Without the recorder in C it is faulthandler's own: a loop
    that uses that itself should turn this watch off (``LOCKSTEP_HANG_TIMEOUT=0s``).

    Args:
        timeouts: user's time-outs, see ``hang_limit_seconds``; one of 0 in steps turns it off.
        is_device_busy: whether the loop's stream has work before it; None where unknown.
        parts: without the part ``flight_recorder`` stacks are written all the same.

    Attributes:
        steps_ns: durations of the last steps, nanoseconds.
        rearm_ns: monotonic time from which on a step's end must call ``arm``.
    """

    def __init__(
        self,
        page: Path,
        timeouts: HangTimeouts,
        now_ns: int,
        is_device_busy: Callable[[], bool | None],
        parts: Parts | None = None,
    ) -> None:
        self.steps_ns: deque[int] = deque(maxlen=_MEDIAN_STEPS)
        self.rearm_ns = 0
        self._timeout_seconds = timeout_seconds = timeouts.step_seconds
        self._pause_timeout_seconds = timeouts.pause_seconds
        self._armed_seconds = 0.0
        self._path = page.with_suffix(STACKS_SUFFIX)
        self._file: TextIOWrapper | None = None
        self._write_at = getattr(compiled, "write_stacks_at", None)
        self._signal: int | None = None
        self._pid = os.getpid()
        self._socket = socket_path(page)
        self._server = self._start_server(parts or Parts()) if timeout_seconds else None
        self._progress = ProgressWatch(
            page, lambda: self._armed_seconds, is_device_busy, parts or Parts()
        )
        self._arm_or_close(now_ns)
        # Hooks of a fork cannot be taken back: they must not keep a watch that is over alive.
        watch = weakref.ref(self)
        os.register_at_fork(
            before=lambda: _arm_around_fork(watch(), armed=False),
            after_in_parent=lambda: _arm_around_fork(watch(), armed=True),
        )

    def _start_server(self, parts: Parts) -> Any:
        return parts.run("flight_recorder", start_worker_server, self._socket)

    def _arm_or_close(self, now_ns: int) -> None:
        is_armed = False
        try:
            self.arm(now_ns)
            is_armed = True
        finally:
            if not is_armed and self._file is not None:
                self._file.close()

    def set_timeout(self, timeout_seconds: float, now_ns: int) -> None:
        """Changes the time-out; 0 turns the timer off."""
        if timeout_seconds != self._timeout_seconds:
            self._timeout_seconds = timeout_seconds
            self.arm(now_ns)

    def arm(self, now_ns: int) -> None:
        """Starts the timer anew: from now on, one limit may pass without the end of a step."""
        if not self._timeout_seconds:
            self._cancel()
            self._armed_seconds = 0.0
            self.rearm_ns = sys.maxsize
            return
        median = statistics.median(self.steps_ns) / 1e9 if self.steps_ns else None
        limit = hang_limit_seconds(
            median, self._timeout_seconds, self._pause_timeout_seconds, is_pause=not self.steps_ns
        )
        # The first step ends the time of a pause, which is long.
        self.rearm_ns = now_ns + int(limit / _ARMS_PER_LIMIT * 1e9) if self.steps_ns else now_ns
        self._armed_seconds = limit * (1 + 1 / _ARMS_PER_LIMIT)
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.fdopen(open_own_file(self._path, flags), "a", encoding="utf-8")
        if os.fstat(self._file.fileno()).st_size > _MAX_STACKS_BYTES:
            self._cancel()
            return
        self.write_later()

    def write_later(self) -> None:
        """Has the stacks written when the armed time has passed from now."""
        assert self._file is not None
        if self._signal is None and self._write_at and (number := _free_signal()):
            faulthandler.register(number, file=self._file)
            self._signal = number
        due_ns = time.monotonic_ns() + int(self._armed_seconds * 1e9)
        if not self._write_at or not self._signal or not self._write_at(due_ns, self._signal):
            faulthandler.dump_traceback_later(self._armed_seconds, file=self._file)

    def _cancel(self) -> None:
        if self._write_at and self._signal:
            self._write_at(0, self._signal)
            faulthandler.unregister(self._signal)
            self._signal = None
        if self._armed_seconds:
            faulthandler.cancel_dump_traceback_later()

    def stop(self) -> None:
        """Ends the watch; in a forked child it ended before the fork, and this does nothing."""
        if os.getpid() != self._pid:
            return
        self._cancel()
        self._progress.stop()
        self._armed_seconds = 0.0
        self.rearm_ns = sys.maxsize
        if self._file is not None:
            is_empty = os.fstat(self._file.fileno()).st_size == 0
            self._file.close()
            self._file = None
            if is_empty:
                self._path.unlink(missing_ok=True)
        if self._server is not None:
            shut_down(self._server, self._socket)
            self._server = None


def _free_signal() -> int | None:
    """A signal that nobody in this process has a handler for, by the kernel's masks.

    Python does not know of handlers that a library in C has set.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    numbers = range(signal.SIGRTMAX, signal.SIGRTMIN, -1)
    return next((n for n in numbers if not any(mask >> (n - 1) & 1 for mask in masks)), None)


def _arm_around_fork(watch: HangWatch | None, *, armed: bool) -> None:
    """Cancels the timer before a fork and arms it after, in the parent."""
    # A child that inherits the timer waits for its thread, which a fork does not copy.
    if watch is None or not watch._armed_seconds or watch._file is None:  # noqa: SLF001  # its own module
        return
    if armed:
        watch.write_later()
    else:
        faulthandler.cancel_dump_traceback_later()
