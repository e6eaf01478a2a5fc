"""The HTTP server of agent, pager and boards: one place for what a stranger may cost them."""

import ipaddress
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MAX_CONNECTIONS = 64
CONNECTION_TIMEOUT_SECONDS = 15.0
_READ_TIMEOUT_SECONDS = 10
_MAX_CLIENTS = 10_000
_CREDENTIALS = struct.Struct("iII")
PLAIN, HTML, JSON = "text/plain; charset=utf-8", "text/html; charset=utf-8", "application/json"


_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


def free_port() -> int:
    """A port of the loopback at which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Hosts:
    """The names by which a program is called, so that no page of elsewhere reaches it.

    A page whose name was turned to the program's address (DNS rebinding) sends its own name as
    ``Host``. An address is not such a name; those of the machine in its resolver's domains are.
    """

    def __init__(self, names: Iterable[str] = (), remedy: str = "") -> None:
        self._remedy = f"use its address, or the name of this machine{remedy}"
        machine = socket.gethostname()
        own = {"localhost", "localhost.localdomain", machine, *names}
        own |= {f"{machine.partition('.')[0]}.{domain}" for domain in _domains()}
        self._names = {name.lower() for name in own}

    def objection(self, hosts: Sequence[str], origins: Sequence[str]) -> str:
        """Why a request to another host, or from a page of another origin, is refused; or empty."""
        if len(hosts) != 1 or not self._admits(hosts[0]):
            return f"host {', '.join(hosts)!r:.80} is not this server's; {self._remedy}"
        for origin in origins:
            if origin.partition("://")[2].lower() != hosts[0].lower():
                return f"origin {origin!r:.80} is not this server; open its own pages"
        return ""

    def _admits(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        name = (match[1] or match[2]).lower().removesuffix(".") if match else ""
        return name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _domains() -> list[str]:
    try:
        lines = Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    words = [line.split() for line in lines]
    return [name for line in words if line[:1] in (["search"], ["domain"]) for name in line[1:]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request; no query in the path, names of headers in any case, no client at a socket."""

    method: str
    path: str
    query: str
    headers: Message
    body: bytes = b""
    client: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, before it is sent; headers beside those that every answer has."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RateLimit:
    """A bucket of requests a client: ten seconds' worth at first, refilled by a monotonic clock."""

    requests_per_second: float
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[Hashable, tuple[float, float]] = field(default_factory=dict)

    def wait_seconds(self, client: Hashable) -> float:
        """How long the client has to wait; 0 admits the request and counts it."""
        now = self.clock()
        capacity = self.requests_per_second * 10
        level, filled_seconds = self._buckets.pop(client, (capacity, now))
        level = min(capacity, level + (now - filled_seconds) * self.requests_per_second)
        is_admitted = level >= 1.0
        self._buckets[client] = (level - is_admitted, now)
        if len(self._buckets) > _MAX_CLIENTS:  # the client that has not asked for longest
            del self._buckets[next(iter(self._buckets))]
        return 0.0 if is_admitted else (1.0 - level) / self.requests_per_second


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
    It answers to an address, to ``localhost`` and to the names of its machine and others: a site
    whose name was turned to this address is another host.

    Args:
        host: address, or path of a socket to which only this user and root may speak.
        max_body_bytes: of a POST; 0 takes none.
    """

    daemon_threads = True
    # With the default of five, the sixth client at once waits a second to send its SYN again.
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, *, names: Iterable[str] = (), max_body_bytes: int = 0
    ) -> None:
        self.connections = ConnectionLimiter(MAX_CONNECTIONS, CONNECTION_TIMEOUT_SECONDS)
        self.max_body_bytes = max_body_bytes
        self._hosts = Hosts((host, *names))
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if host.startswith("/"):
            self.address_family = socket.AF_UNIX
        super().__init__((host, port), SmallHandler)

    def respond(self, request: Request) -> Answer:
        """The answer to a request; a HEAD's body is not sent."""
        raise NotImplementedError

    def objection(self, headers: Message) -> str:
        """Why what another site sends through a reader's browser is refused; or empty."""
        return self._hosts.objection(headers.get_all("Host", []), headers.get_all("Origin", []))

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
        answer, body = None, b""
        # A probe of HTTP/1.0 has no host, and no browser speaks it.
        has_host = self.request_version != "HTTP/1.0" or "Host" in self.headers
        if has_host and (objection := self.server.objection(self.headers)):
            answer = Answer(HTTPStatus.FORBIDDEN, f"{objection}\n".encode())
        if answer is None and self.command == "POST":
            answer, body = self._read_body()
        if answer is None:
            path, _, query = self.path.partition("?")
            client = str(self.client_address[0]) if self.client_address else ""
            request = Request(self.command, path, query, self.headers, body, client)
            answer = self.server.respond(request)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in {"X-Content-Type-Options": "nosniff", **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _read_body(self) -> tuple[Answer | None, bytes]:
        lengths, most = self.headers.get_all("Content-Length", []), self.server.max_body_bytes
        length = lengths[0] if len(lengths) == 1 and "Transfer-Encoding" not in self.headers else ""
        if not length.isdecimal():
            text = b"one Content-Length must say the length in bytes\n"
            return Answer(HTTPStatus.LENGTH_REQUIRED, text), b""
        if len(length) > len(str(most)) or int(length) > most:
            text = f"at most {most} bytes, not {length[:20]}\n".encode()
            return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text), b""
        return None, self.rfile.read(int(length))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        """Logs nothing: a line for every request would bury the rest."""
