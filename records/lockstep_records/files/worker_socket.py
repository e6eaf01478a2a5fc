"""Queries torch's worker server inside a rank, over the Unix socket beside its page.

The server answers from a thread of C++: also while the rank waits in a collective, and, where an
answer needs no Python, while a thread holds the interpreter's lock.
"""

import http.client
import socket
from pathlib import Path

SUFFIX = ".sock"
MAX_PATH_BYTES = 100  # the kernel takes at most 107
MAX_ANSWER_BYTES = 64 << 20
FLIGHT_RECORDER = "fr_trace_json"


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
