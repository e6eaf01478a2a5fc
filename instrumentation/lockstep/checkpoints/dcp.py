"""Counts checkpoints that ``torch.distributed.checkpoint`` writes and reads, by its own log.

DCP logs begin and end of ``save``, ``async_save`` and ``load`` to a logger of its own. In the loop,
these calls block the step. ``async_save`` leaves a ``save`` to another thread: the rest of the same
checkpoint, known by its folder.
"""

# A save that is left to another process logs there, and is not seen here.

import logging
import re
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lockstep.guard import guarded
from lockstep.monitor.checkpoint_handles import Restoring, Saving
from lockstep.monitor.protocol import Monitor
from lockstep.patches.points import CHECKPOINT_LOGGER, find_or_report

_STEP_AT_END = re.compile(r"(\d+)\D*$")
_SAVES = ("save", "async_save")
_default_watches: "list[DcpWatch]" = []


def watch_dcp(monitor: Monitor, rank: int | None = None) -> "DcpWatch":
    """Counts what ``torch.distributed.checkpoint`` saves and loads in this thread from now on.

    Put no block of ``monitor.checkpoint`` around DCP's calls then: they would be counted twice.

    Args:
        monitor: counts the checkpoints and restores.
        rank: of this process, by which its own files are known; by default that of
            torch.distributed, and 0 without it.

    Returns:
        The watch; its ``close()`` ends it.
    """
    _end_default_watch()
    return DcpWatch(monitor, _own_rank() if rank is None else rank)


def watch_by_default(monitor: Monitor) -> None:
    """Does the same for a loop that has loaded DCP, until the loop asks for a watch of its own."""
    _end_default_watch()
    _default_watches.append(DcpWatch(monitor, _own_rank(), leaves_blocks=True))


def _end_default_watch() -> None:
    while _default_watches:
        _default_watches.pop().close()


def _own_rank() -> int:
    # A loop that saves by DCP has loaded torch; this module must not load it for other loops.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())


class DcpWatch(logging.Handler):
    """Counts DCP's checkpoints and restores into a monitor, from the thread that creates it.

    Args:
        monitor: counts the checkpoints and restores.
        rank: of this process, by which its own files are known.
        leaves_blocks: whether it counts nothing inside a block of the loop's own.
    """

    def __init__(self, monitor: Monitor, rank: int, *, leaves_blocks: bool = False) -> None:
        super().__init__(logging.DEBUG)
        self._monitor, self._rank = monitor, rank
        self._leaves_blocks = leaves_blocks
        self._thread = threading.get_ident()
        # By the number that DCP gives each call; a save also by its folder, for another thread.
        self._open: dict[str, ExitStack] = {}
        self._restoring: dict[str, Restoring] = {}
        self._saving: dict[str, Saving] = {}
        self._logger: logging.Logger | None = find_or_report(CHECKPOINT_LOGGER)
        if self._logger is not None:
            self._logger.addHandler(self)

    def close(self) -> None:
        """Ends the watch."""
        if self._logger is not None:
            self._logger.removeHandler(self)
        super().close()

    def fail(self, error: Exception) -> None:
        """Ends the watch after an error of ours; the monitor goes on."""
        self._monitor.fail_part("checkpoints", error)
        self.close()

    @guarded
    def emit(self, record: logging.LogRecord) -> None:
        """Takes one of DCP's log records."""
        if not isinstance(record.msg, dict):
            return
        entry: dict[str, Any] = record.msg
        name, call, event = entry.get("func_name"), entry.get("uuid"), entry.get("event")
        folder = str(entry.get("checkpoint_id"))
        if name not in (*_SAVES, "load"):
            return
        if threading.get_ident() != self._thread:
            if name == "save" and event != "start":
                self._end_save(folder, failed=event == "exception")
        elif event == "start" and not self._open:  # a nested call is the same checkpoint
            if not (self._leaves_blocks and self._monitor.is_in_block):
                self._begin(str(name), str(call), folder)
        elif event != "start" and call in self._open:
            self._leave(str(name), str(call), folder, failed=event == "exception")

    def _begin(self, name: str, call: str, folder: str) -> None:
        self._open[call] = blocks = ExitStack()
        if name == "load":
            self._restoring[call] = blocks.enter_context(self._monitor.restore())
            return
        saving = blocks.enter_context(self._monitor.checkpoint(_step_in(folder)))
        saving.later()
        self._saving[folder] = saving

    def _leave(self, name: str, call: str, folder: str, *, failed: bool) -> None:
        if name == "load":
            restoring, step = self._restoring.pop(call), _step_in(folder)
            if failed:
                restoring.fail()
            else:
                restoring.found(0 if step is None else step)
        elif name == "save" or failed:
            self._end_save(folder, failed=failed)
        self._open.pop(call).close()

    def _end_save(self, folder: str, *, failed: bool) -> None:
        saving = self._saving.pop(folder, None)
        if saving is None:
            return
        # torch names the files of a rank __RANK_N.distcp; they may be elsewhere.
        own_files = Path(folder).glob(f"__{self._rank}_*")
        size_bytes = sum(file.stat().st_size for file in own_files)
        if size_bytes:
            saving.wrote(size_bytes)
        saving.end(failed=failed)


def _step_in(folder: str) -> int | None:
    """The last number in the name of a checkpoint's folder, by convention its step."""
    match = _STEP_AT_END.search(Path(folder).name)
    return int(match[1]) if match else None
