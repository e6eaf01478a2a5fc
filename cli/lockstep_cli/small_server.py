"""The HTTP server of agent, pager and boards: one place for what a stranger may cost them."""

import ipaddress
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MAX_CONNECTIONS = 64
CONNECTION_TIMEOUT_SECONDS = 15.0
_READ_TIMEOUT_SECONDS = 10
_CREDENTIALS = struct.Struct("iII")
PLAIN, HTML, JSON = "text/plain; charset=utf-8", "text/html; charset=utf-8", "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """One request; the path has no query, the names of headers have any case."""

    method: str
    path: str
    query: str
    headers: Message
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, before it is sent; headers beside those that every answer has."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)


class ConnectionLimiter:
    """Keeps every open connection with the time at which it was opened.

    A slow client holds a thread until its time-out or until the limit is reached: then the oldest
    connection is closed. So a new client always gets in, however many others do nothing.
    """

    def __init__(
        self, max_open: int, timeout_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_open, self._timeout_seconds, self._clock = max_open, timeout_seconds, clock
        self._opened_seconds: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self._opened_seconds)

    def add(self, connection: socket.socket) -> None:
        """Adds a connection that was opened; the oldest is closed when there are too many."""
        with self._lock:
            by_age = sorted(self._opened_seconds, key=lambda other: self._opened_seconds[other])
            for oldest in by_age[: max(len(by_age) + 1 - self._max_open, 0)]:
                self._close(oldest)
            self._opened_seconds[connection] = self._clock()

    def replace(self, plain: socket.socket, secured: socket.socket) -> bool:
        """Replaces a connection by the one of its TLS; False when it was closed meanwhile."""
        with self._lock:
            opened_seconds = self._opened_seconds.pop(plain, None)
            if opened_seconds is not None:
                self._opened_seconds[secured] = opened_seconds
            return opened_seconds is not None

    def remove(self, connection: socket.socket) -> None:
        """Removes a connection that is closed."""
        with self._lock:
            self._opened_seconds.pop(connection, None)

    def close_overdue(self) -> None:
        """Closes the connections that have reached their time-out."""
        with self._lock:
            latest_seconds = self._clock() - self._timeout_seconds
            for connection, opened_seconds in list(self._opened_seconds.items()):
                if opened_seconds <= latest_seconds:
                    self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        """Wakes the thread that reads or writes, which then closes the socket.

        Of a TLS connection the plain socket is shut down: ``SSLSocket.shutdown`` would take the
        session away from the thread that uses it.
        """
        self._opened_seconds.pop(connection, None)
        try:
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already


class SmallServer(ThreadingHTTPServer):
    """Listens at once; port 0 takes any free one. A program overrides ``respond``.

    One request a connection, one thread each: bounded in number and time by ``ConnectionLimiter``.
    It answers to an address, to ``localhost`` and to the names of its machine: a site whose name
    was turned to this address is another host.

    Args:
        host: address, or path of a socket to which only this user and root may speak.
        names: by which the machine is known beside its own.
        max_body_bytes: of a POST; 0 takes none.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True
    # With the default of five, the sixth client at once waits a second to send its SYN again.
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, *, names: Iterable[str] = (), max_body_bytes: int = 0
    ) -> None:
        self.connections = ConnectionLimiter(MAX_CONNECTIONS, CONNECTION_TIMEOUT_SECONDS)
        self.max_body_bytes = max_body_bytes
        hosts = {"localhost", host, socket.gethostname(), *names}
        self._hosts = {_first_label(name) for name in hosts if name and not is_address(name)}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if host.startswith("/"):
            self.address_family = socket.AF_UNIX
        super().__init__((host, port), SmallHandler)

    def respond(self, request: Request) -> Answer:
        """The answer to a request; a HEAD's body is not sent."""
        raise NotImplementedError

    def refuse(self, method: str, headers: Message) -> Answer | None:
        """The refusal of what another site sends through a reader's browser, else None."""
        host = headers.get("Host") or ""
        name = host.removeprefix("[").partition("]" if "[" in host else ":")[0]
        if name and not is_address(name) and _first_label(name) not in self._hosts:
            text = f"this is not {name[:100]!r}; ask by the address or the name of this machine\n"
            return Answer(HTTPStatus.MISDIRECTED_REQUEST, text.encode())
        origin = headers.get("Origin")
        if method == "POST" and origin is not None and origin.partition("://")[2] != host:
            text = f"pages of {origin[:100]!r} may not post here\n"
            return Answer(HTTPStatus.FORBIDDEN, text.encode())
        return None

    def server_bind(self) -> None:
        """Binds without asking a name server for the host's name, which can take seconds."""
        if self.address_family == socket.AF_UNIX:
            path = Path(str(self.server_address[0]))
            path.unlink(missing_ok=True)
            self.socket.bind(str(path))
            path.chmod(0o600)
            return
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  # of its base
        """Whether a connection is answered: at a socket in a folder, this user's and root's."""
        if self.address_family != socket.AF_UNIX:
            return True
        credentials = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return _CREDENTIALS.unpack(credentials)[1] in {0, os.geteuid()}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the connection's thread; at the limit the oldest connection is closed."""
        self.connections.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answers in the connection's own thread."""
        request.settimeout(_READ_TIMEOUT_SECONDS)
        super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Ends the connection."""
        self.connections.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Closes connections that last too long; called regularly by the loop that accepts."""
        self.connections.close_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing of clients that hang up, never read or do not speak the protocol."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """Host and port, as in a URL."""
        host, port = self.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"


def is_address(name: str) -> bool:
    """Whether a host is an address, which no name server can turn to another machine."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _first_label(name: str) -> str:
    return name.partition(".")[0].lower()


class SmallHandler(BaseHTTPRequestHandler):
    """One request of a connection: refused by the server's rules, or answered by its program."""

    server: SmallServer
    server_version, sys_version = "lockstep", ""
    timeout = _READ_TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answers."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answers without the body."""
        self._answer()

    def do_POST(self) -> None:
        """Answers."""
        self._answer()

    def _answer(self) -> None:
        answer = self.server.refuse(self.command, self.headers)
        body = b""
        if answer is None and self.command == "POST":
            answer, body = self._read_body()
        if answer is None:
            path, _, query = self.path.partition("?")
            answer = self.server.respond(Request(self.command, path, query, self.headers, body))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in {"X-Content-Type-Options": "nosniff", **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _read_body(self) -> tuple[Answer | None, bytes]:
        """A refusal or None, and the body; one that is too long is not read."""
        length, most = self.headers.get("Content-Length", ""), self.server.max_body_bytes
        if not length.isdecimal():
            text = b"Content-Length must say the length in bytes\n"
            return Answer(HTTPStatus.LENGTH_REQUIRED, text), b""
        if len(length) > len(str(most)) or int(length) > most:
            text = f"at most {most} bytes, not {length[:20]}\n".encode()
            return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text), b""
        return None, self.rfile.read(int(length))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        """Logs nothing: a line for every request would bury the rest."""
