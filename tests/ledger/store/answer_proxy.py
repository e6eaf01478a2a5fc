"""A TCP proxy that loses PostgreSQL's answer to a COMMIT: it cuts the connection, or is silent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal


class AnswerProxy:
    """Passes bytes on until ``fault`` is set; it comes true at the next COMMIT, once."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.fault: Literal["", "cut", "silence"] = ""
        self.commits_lost = 0

    @property
    def dsn(self) -> str:
        return f"postgresql://ledger@127.0.0.1:{self.port}/postgres"

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(str(self._server))
                threading.Thread(target=self._serve, args=(client, upstream), daemon=True).start()

    def _serve(self, client: socket.socket, upstream: socket.socket) -> None:
        lost: list[str] = []
        back = threading.Thread(target=self._answer, args=(client, upstream, lost), daemon=True)
        back.start()
        with suppress(OSError), client, upstream:
            while chunk := client.recv(65536):
                if self.fault and b"COMMIT" in chunk:
                    lost.append(self.fault)
                    self.fault = ""
                upstream.sendall(chunk)
            upstream.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, upstream: socket.socket, lost: list[str]) -> None:
        with suppress(OSError):
            while chunk := upstream.recv(65536):
                if not lost:
                    client.sendall(chunk)
                    continue
                # By its answer the server has committed.
                self.commits_lost += 1
                if lost == ["cut"]:
                    break
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def answer_proxy(server: Path) -> Iterator[AnswerProxy]:
    proxy = AnswerProxy(server)
    thread = threading.Thread(target=proxy.run, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join(5)
