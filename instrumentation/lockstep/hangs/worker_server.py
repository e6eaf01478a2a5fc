"""Torch's worker server in a rank: from its thread of C++ the launcher gets the Flight Recorder."""

import ctypes
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockstep.patches.points import WORKER_SERVER, find_or_report
from lockstep_records.files.worker_socket import MAX_PATH_BYTES, query

log = logging.getLogger("lockstep")
_START_SECONDS = 0.5
_POLL_SECONDS = 0.005
# Torch's limit of what its C++ code logs; 1 is a warning. By its name in builds without gflags, as
# all wheels are.
_LOG_LEVEL = "FLAGS_caffe2_log_level"
_ERRORS_ONLY = 2


# Torch reads the first of them that it knows as the first group is made; old ones take none for 0.
_BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_ENTRIES = "2000"  # torch's own default where it has one


def flight_recorder_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that switch torch's Flight Recorder on; none where the user has set one."""
    is_chosen = any(name in environment for name in _BUFFER_SIZES)
    return {} if is_chosen else dict.fromkeys(_BUFFER_SIZES, _ENTRIES)


def start_worker_server(path: Path) -> Any:
    """Torch's worker server on a private socket; None without a group, or where torch refuses."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None  # a rank that waits for no other has no Flight Recorder
    if len(str(path)) > MAX_PATH_BYTES:
        log.warning("no Flight Recorder in a hang: path %s is too long for a socket", path)
        return None
    worker_server = find_or_report(WORKER_SERVER)
    if worker_server is None:
        return None
    try:
        with _ignore_warnings():
            server = worker_server(str(path), -1)
    except (TypeError, RuntimeError, OSError) as error:
        log.warning("no Flight Recorder in a hang: torch's worker server does not start: %s", error)
        return None
    # Never freed: in a forked child its destructor would shut the socket that the parent listens
    # on, and torch would abort the parent.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    return server


def shut_down(server: Any, path: Path) -> None:
    """Ends a worker server once it listens; where it does not, it ends with the process."""
    # shutdown() before the server listens never returns.
    deadline = time.monotonic() + _START_SECONDS
    while query(path, "ping", _START_SECONDS) is None:
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)
    with _ignore_warnings():
        server.shutdown()


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Keeps torch from logging that a server starts or ends, which nobody asked for."""
    level = _log_level()
    if level is None:
        yield
        return
    before = level.value
    level.value = max(before, _ERRORS_ONLY)
    try:
        yield
    finally:
        level.value = before


def _log_level() -> ctypes.c_int | None:
    """Torch's variable; None in a build that has no such symbol."""
    library = Path(sys.modules["torch"].__path__[0]) / "lib" / "libc10.so"
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), _LOG_LEVEL)
    except (OSError, ValueError):
        return None
