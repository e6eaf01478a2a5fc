"""Queries torch's worker server inside a rank, over the Unix socket beside its page.

The server answers from a thread of C++: also while the rank waits in a collective, and, where an
answer needs no Python, while a thread holds the interpreter's lock.
"""

import http.client
import json
import logging
import socket
import time
from pathlib import Path

log = logging.getLogger("lockstep")
SUFFIX = ".sock"
MAX_PATH_BYTES = 100  # the kernel takes at most 107
MAX_ANSWER_BYTES = 64 << 20
_LEAST_SECONDS = 0.1
# NCCL's recorder first: the other one holds what gloo does, and is empty where nothing does.
FLIGHT_RECORDERS = ("dump_nccl_trace_json", "fr_trace_json")


def socket_path(page: Path) -> Path:
    """The socket that belongs to a page."""
    return page.with_suffix(SUFFIX)


# http.client knows TCP only.
class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def query(path: Path, handler: str, timeout_seconds: float = 5.0) -> bytes | None:
    """Answer of a handler of the rank's worker server; None when none comes in time."""
    connection = _UnixConnection(path, timeout_seconds)
    try:
        connection.request("POST", f"/handler/{handler}")
        answer = connection.getresponse()
        data = answer.read(MAX_ANSWER_BYTES + 1)
        is_complete = answer.status == http.client.OK and len(data) <= MAX_ANSWER_BYTES
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return data if is_complete else None


def query_flight_recorder(path: Path, timeout_seconds: float = 5.0) -> bytes | None:
    """The dump of the rank's Flight Recorder that holds collectives; None where none does.

    That all of them are empty is logged: such a dump says nothing of the rank. A rank that is
    stopped and answers nothing is waited for once.
    """
    end = time.monotonic() + timeout_seconds
    dumps = [
        query(path, handler, max(_LEAST_SECONDS, end - time.monotonic()))
        for handler in FLIGHT_RECORDERS
    ]
    answers = [dump for dump in dumps if dump is not None]
    if (dump := next((dump for dump in answers if holds_collectives(dump)), None)) is not None:
        return dump
    if answers:
        log.warning(
            "the Flight Recorder of %s is empty and says nothing of its collectives: "
            "TORCH_FR_BUFFER_SIZE is 0, or the rank has started none",
            path.stem,
        )
    return None


def holds_collectives(dump: bytes) -> bool:
    """Whether a dump in JSON has collectives, or says how far a group is."""
    try:
        values = json.loads(dump)
    except ValueError:
        return False
    return isinstance(values, dict) and bool(values.get("entries") or values.get("pg_status"))
