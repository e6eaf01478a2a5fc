"""Checkpoints that are written by ``torch.distributed.checkpoint``, without a line in the loop.

DCP logs the begin and end of ``save``, ``async_save`` and ``load`` to a logger of its own. What it
does in the loop's thread blocks the step; the ``save`` that ``async_save`` leaves to a thread is
the rest of the same checkpoint, known by its place. One that is left to a process cannot be seen.
"""

import logging
import re
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.logger import _dcp_logger

from lockstep.guard import guarded
from lockstep.monitor.checkpoint_handles import Restoring, Saving
from lockstep.monitor.protocol import Monitor

_STEP_AT_END = re.compile(r"(\d+)\D*$")
_SAVES = ("save", "async_save")


class DcpWatch(logging.Handler):
    """Counts DCP's checkpoints and restores into a monitor, from the thread that makes it.

    Put no block of ``monitor.checkpoint`` around DCP's calls: they would be counted twice.

    Args:
        rank: of this process, by which its own files are known.
    """

    def __init__(self, monitor: Monitor, rank: int) -> None:
        super().__init__(logging.DEBUG)
        self._monitor, self._rank = monitor, rank
        self._thread = threading.get_ident()
        self._open: dict[str, ExitStack] = {}
        self._saving: dict[str, Saving] = {}
        self._restoring: dict[str, Restoring] = {}
        _dcp_logger.addHandler(self)

    def close(self) -> None:
        """Listens no more."""
        _dcp_logger.removeHandler(self)
        super().close()

    def fail(self, error: Exception) -> None:
        """An error of ours is the monitor's."""
        self._monitor.fail(error)

    @guarded
    def emit(self, record: logging.LogRecord) -> None:
        """One of DCP's records."""
        if not isinstance(record.msg, dict):
            return
        told: dict[str, Any] = record.msg
        name, call, event = told.get("func_name"), told.get("uuid"), told.get("event")
        place = str(told.get("checkpoint_id"))
        if name not in (*_SAVES, "load"):
            return
        if threading.get_ident() != self._thread:
            if name == "save" and event != "start":
                self._end(place, failed=event == "exception")
        elif event == "start" and not self._open:
            self._begin(str(name), str(call), place)
        elif event != "start" and call in self._open:
            self._leave(str(name), str(call), place, failed=event == "exception")

    def _begin(self, name: str, call: str, place: str) -> None:
        self._open[call] = blocks = ExitStack()
        if name == "load":
            self._restoring[call] = blocks.enter_context(self._monitor.restore())
            return
        saving = blocks.enter_context(self._monitor.checkpoint(_step_in(place)))
        saving.later()
        self._saving[place] = saving

    def _leave(self, name: str, call: str, place: str, *, failed: bool) -> None:
        if name == "load":
            restoring, step = self._restoring.pop(call), _step_in(place)
            if failed:
                restoring.fail()
            else:
                restoring.found(0 if step is None else step)
        elif name == "save" or failed:
            self._end(place, failed=failed)
        self._open.pop(call).close()

    def _end(self, place: str, *, failed: bool) -> None:
        saving = self._saving.pop(place, None)
        if saving is None:
            return
        size_bytes = bytes_of_rank(Path(place), self._rank)
        if size_bytes:
            saving.wrote(size_bytes)
        saving.end(failed=failed)


def bytes_of_rank(folder: Path, rank: int) -> int:
    """Size of a rank's own files in a checkpoint's folder; 0 where they are elsewhere."""
    return sum(file.stat().st_size for file in folder.glob(f"__{rank}_*"))


def _step_in(place: str) -> int | None:
    """The last number in the name of a checkpoint's folder, which is how people name its step."""
    found = _STEP_AT_END.search(Path(place).name)
    return int(found[1]) if found else None
