"""A ledger with tokens as a process, and requests to it byte by byte."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..service import LedgerProcess, ledger_process

WRITER, READER = "w" * 20, "r" * 20


@contextmanager
def guarded_ledger(folder: Path) -> Iterator[LedgerProcess]:
    """A ledger with tokens; it ends without an error of its own."""
    for name, token in (("writers", WRITER), ("readers", READER)):
        (folder / name).write_text(token, encoding="ascii")
    options = ("--writer-tokens", str(folder / "writers"), "--reader-tokens",
               str(folder / "readers"), "--allowed-host", "ledger.example")  # fmt: skip
    with ledger_process(folder / "ledger.db", *options) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in "".join(process.lines)


def ask(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    """Status and body of an answer, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, names)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def send(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.sendall(request)
        answer = bytearray()
        while part := link.recv(65536):
            answer += part
    return bytes(answer)
