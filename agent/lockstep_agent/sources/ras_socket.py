"""Asks NCCL's status socket, within bounds of time and bytes, in the network namespace it is in."""

import ctypes
import errno
import os
import socket
import threading
import time
from pathlib import Path

from lockstep_agent.sources.nccl_processes import NcclProcess, still_listens
from lockstep_records.nccl.ras_answer import LargeAnswerError

MAX_ANSWER_BYTES = 8 << 20
"""JSON of 1,024 ranks in ten communicators each has 6 MB; who has more is asked for text."""
ANSWER_SECONDS = 15.0
"""NCCL itself waits 5 s a leg and 10 s in all for processes that do not answer."""
_CONNECT_SECONDS = 2.0
_CHUNK_BYTES = 1 << 16
_CLONE_NEWNET = 0x40000000
_QUESTIONS = {
    True: b"CLIENT PROTOCOL 2\nTIMEOUT 5\nVERBOSE STATUS\n",
    False: b"CLIENT PROTOCOL 2\nTIMEOUT 5\nSET FORMAT json\nSTATUS\n",
}


def ask(
    process: NcclProcess,
    procfs: Path,
    *,
    as_text: bool,
    limit_seconds: float = ANSWER_SECONDS,
    most_bytes: int = MAX_ANSWER_BYTES,
) -> bytes:
    """The answer of one of the processes behind a socket, which covers its whole job.

    Raises:
        LargeAnswerError: it is longer than ``most_bytes``.
        OSError: nobody answers in time, or the namespace may not be entered.
    """
    deadline = time.monotonic() + limit_seconds
    _check_owner(process, procfs)
    connection = _socket_in(process, procfs)
    answer = bytearray()
    with connection:
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect((process.endpoint.address, process.endpoint.port))
        connection.sendall(_QUESTIONS[as_text])
        while True:
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                raise TimeoutError(errno.ETIMEDOUT, f"it is not whole after {limit_seconds:g} s")
            connection.settimeout(left_seconds)
            chunk = connection.recv(_CHUNK_BYTES)
            if not chunk:
                break
            answer += chunk
            if len(answer) > most_bytes:
                raise LargeAnswerError(f"it has over {most_bytes:,} bytes")
    _check_owner(process, procfs)
    return bytes(answer)


def _check_owner(process: NcclProcess, procfs: Path) -> None:
    """Before and after: what another user says in between is of nobody."""
    if not still_listens(procfs, process):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "the port is not its user's any more")


def _socket_in(process: NcclProcess, procfs: Path) -> socket.socket:
    """A socket of the process's network namespace, where it stays whichever thread uses it."""
    is_ipv6 = ":" in process.endpoint.address
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    own = (Path("/proc/thread-self") / "ns" / "net").stat().st_ino
    if process.endpoint.network == own:
        return socket.socket(family, socket.SOCK_STREAM)
    opened: list[socket.socket | OSError] = []

    def open_there() -> None:
        try:
            _enter(procfs / str(process.pid) / "ns" / "net")
            opened.append(socket.socket(family, socket.SOCK_STREAM))
        except OSError as error:
            opened.append(error)

    # The namespace is that of one thread, which ends with it.
    thread = threading.Thread(target=open_there, name="ras-namespace", daemon=True)
    thread.start()
    thread.join()
    if isinstance(opened[0], OSError):
        raise opened[0]
    return opened[0]


def _enter(namespace: Path) -> None:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"its network namespace: {os.strerror(number)}")
    finally:
        os.close(descriptor)
