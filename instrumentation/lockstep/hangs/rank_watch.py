"""Hang watch of a rank: its stacks beside the page when no step ends, whoever holds the GIL.

The stacks are written by faulthandler's thread of C, which needs no lock of the interpreter and
sleeps in the kernel until its time has come. Arming it anew costs some 60 microseconds, so it is
done once in an eighth of the time allowed, not each step. The Flight Recorder is fetched from
outside, from torch's worker server on a private socket: see ``lockstep_records.hangs``.
"""

import ctypes
import faulthandler
import logging
import os
import statistics
import sys
import time
import weakref
from collections import deque
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from lockstep_records.hangs import hang_limit_seconds
from lockstep_records.worker_socket import MAX_PATH_BYTES, query, socket_path

log = logging.getLogger("lockstep")
STACKS_SUFFIX = ".stacks"
_SLACK = 8
_MAX_STACKS_BYTES = 4 << 20
_STEPS_KEPT = 64
_LISTENS_WITHIN_SECONDS = 0.5
_ASKED_AGAIN_SECONDS = 0.005


class HangWatch:
    """Keeps faulthandler's timer ahead of the steps, and torch's worker server open.

    Python has one such timer a process: a loop that uses ``faulthandler.dump_traceback_later``
    itself should turn this watch off (``LOCKSTEP_HANG_SECONDS=0``).

    Args:
        page: path of the rank's page; stacks and socket lie beside it.
        floor_seconds: no hang is shorter; 0 turns the watch off.
        now_ns: monotonic clock.
    """

    def __init__(self, page: Path, floor_seconds: float, now_ns: int) -> None:
        self.steps_ns: deque[int] = deque(maxlen=_STEPS_KEPT)
        self.rearm_ns = 0
        self._floor_seconds = floor_seconds
        self._armed_seconds = 0.0
        self._path = page.with_suffix(STACKS_SUFFIX)
        self._file: TextIOWrapper | None = None
        self._pid = os.getpid()
        self._socket = socket_path(page)
        self._server = _worker_server(self._socket) if floor_seconds else None
        self.arm(now_ns)
        me = weakref.ref(self)
        os.register_at_fork(
            before=lambda: _around_fork(me(), armed=False),
            after_in_parent=lambda: _around_fork(me(), armed=True),
        )

    def set_floor(self, floor_seconds: float, now_ns: int) -> None:
        """Watches by another floor from now on; 0 turns the timer off."""
        if floor_seconds != self._floor_seconds:
            self._floor_seconds = floor_seconds
            self.arm(now_ns)

    def arm(self, now_ns: int) -> None:
        """Starts the time allowed anew."""
        if not self._floor_seconds:
            self._cancel()
            self.rearm_ns = sys.maxsize
            return
        median = statistics.median(self.steps_ns) / 1e9 if self.steps_ns else None
        limit = hang_limit_seconds(median, self._floor_seconds, is_pause=not self.steps_ns)
        self.rearm_ns = now_ns + int(limit / _SLACK * 1e9)
        self._armed_seconds = limit * (1 + 1 / _SLACK)
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        if os.fstat(self._file.fileno()).st_size > _MAX_STACKS_BYTES:
            self._cancel()
            return
        faulthandler.dump_traceback_later(self._armed_seconds, file=self._file)

    def _cancel(self) -> None:
        if self._armed_seconds:
            faulthandler.cancel_dump_traceback_later()

    def stop(self) -> None:
        """Ends the watch; in a forked child it ended before the fork."""
        if os.getpid() != self._pid:
            return
        self._cancel()
        self._armed_seconds = 0.0
        self.rearm_ns = sys.maxsize
        if self._file is not None:
            empty = os.fstat(self._file.fileno()).st_size == 0
            self._file.close()
            self._file = None
            if empty:
                self._path.unlink(missing_ok=True)
        if self._server is not None:
            _shut(self._server, self._socket)
            self._server = None


def _around_fork(watch: HangWatch | None, *, armed: bool) -> None:
    """No timer crosses a fork: a child would wait for its thread, which it does not have."""
    if watch is None or not watch._armed_seconds or watch._file is None:  # noqa: SLF001  # its own module
        return
    if armed:
        faulthandler.dump_traceback_later(watch._armed_seconds, file=watch._file)  # noqa: SLF001  # its own module
    else:
        faulthandler.cancel_dump_traceback_later()


def _worker_server(path: Path) -> Any:
    """Torch's worker server on a private socket; None without a group, or where torch refuses."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None  # who waits for nobody has no Flight Recorder to fetch
    if len(str(path)) > MAX_PATH_BYTES:
        log.warning("no Flight Recorder in a hang: path %s is too long for a socket", path)
        return None
    try:
        from torch._C._distributed_c10d import _WorkerServer  # noqa: PLC0415  # torch is loaded already

        server = _WorkerServer(str(path), -1)
    except (ImportError, RuntimeError, OSError) as error:
        log.warning("no Flight Recorder in a hang: torch's worker server does not start: %s", error)
        return None
    # Never freed: in a forked child its destructor would shut the socket that the parent listens
    # on, and the parent would be aborted.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    return server


def _shut(server: Any, path: Path) -> None:
    """Ends a worker server that listens; one told to end before that is waited for without end."""
    until = time.monotonic() + _LISTENS_WITHIN_SECONDS
    while query(path, "ping", _LISTENS_WITHIN_SECONDS) is None:
        if time.monotonic() > until:
            return  # it ends with the process
        time.sleep(_ASKED_AGAIN_SECONDS)
    server.shutdown()
