"""The HTTP server of metrics and health: its pages, rendered once a tick, and its connections."""

import gzip
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lockstep_agent.exposition.dcgm_names import render_dcgm
from lockstep_agent.exposition.text import Exposition
from lockstep_agent.health.verdicts import health_of
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.web.access_control import AccessControl, Rules

_PLAIN = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_INDEX = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>lockstep agent</title>
<h1>lockstep agent</h1>
<ul><li><a href="/metrics">/metrics</a>: GPUs, network ports and ranks of this node</li>
<li><a href="/metrics/dcgm">/metrics/dcgm</a>: the GPUs in the names of dcgm-exporter</li>
<li><a href="/health">/health</a>: verdicts on GPUs, ports and the node</li>
<li><a href="/events">/events</a>: recent incidents, and hangs of jobs</li>
<li><a href="/ready">/ready</a>: whether there is a sample</li>
<li><a href="/healthz">/healthz</a>: whether sampling continues</li></ul></html>
"""
# They reveal nothing of the node, and a kubelet's probe has no password.
OPEN_TO_ALL = frozenset({"/healthz", "/ready"})
_MIN_GZIP_BYTES = 1000
# The fastest level: a body may be compressed every tick.
_GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, before it is sent."""

    status: HTTPStatus
    body: bytes
    content_type: str
    encoding: str = ""


class Pages:
    """Every page of the agent's server."""

    def __init__(
        self, sampler: Sampler, node: str, events: Callable[[], bytes] = lambda: b"[]"
    ) -> None:
        self._sampler, self._node, self._events = sampler, node, events
        self._lock = threading.Lock()
        self._exposition: Exposition | None = None
        self._bodies: dict[tuple[str, bool], bytes] = {}

    def answer(self, path: str, accept: str = "", accept_encoding: str = "") -> Answer:
        """The answer to a GET of this path, without its query."""
        is_gzip = _accepts_gzip(accept_encoding)
        if path == "/metrics":
            return self._metrics(accept, is_gzip)
        if path == "/metrics/dcgm":
            return self._render_sample(
                "dcgm", lambda latest: render_dcgm(latest.readings, self._node), _PLAIN, is_gzip
            )
        if path == "/health":
            return self._render_sample("health", self._health, _JSON, is_gzip)
        return self._plain(path)

    def _health(self, latest: Exposition) -> bytes:
        return json.dumps(health_of(latest, self._node)).encode() + b"\n"

    def _plain(self, path: str) -> Answer:
        """The pages that are not rendered from a sample and never compressed."""
        if path == "/events":
            return Answer(HTTPStatus.OK, self._events(), _JSON)
        if path in OPEN_TO_ALL:
            return self._liveness()
        if path == "/":
            return Answer(HTTPStatus.OK, _INDEX, _HTML)
        return Answer(HTTPStatus.NOT_FOUND, b"not here; try /metrics\n", _PLAIN)

    def _metrics(self, accept: str, is_gzip: bool) -> Answer:
        latest = self._sampler.latest
        if latest is None:
            return _NO_SAMPLE
        body, content_type = latest.choose(accept)
        return self._render_sample(content_type, lambda _: body, content_type, is_gzip, latest)

    def _render_sample(
        self,
        name: str,
        render: Callable[[Exposition], bytes],
        content_type: str,
        is_gzip: bool,
        latest: Exposition | None = None,
    ) -> Answer:
        """The body that ``render`` gives for the newest sample, rendered once however many ask."""
        # A newer sample may have replaced the one that the caller took its body from.
        latest = latest or self._sampler.latest
        if latest is None:
            return _NO_SAMPLE
        with self._lock:
            if self._exposition is not latest:
                self._exposition, self._bodies = latest, {}
            plain = self._bodies.get((name, False))
            if plain is None:
                plain = self._bodies[name, False] = render(latest)
            if not is_gzip or len(plain) < _MIN_GZIP_BYTES:
                return Answer(HTTPStatus.OK, plain, content_type)
            body = self._bodies.get((name, True))
            if body is None:
                body = self._bodies[name, True] = gzip.compress(plain, _GZIP_LEVEL, mtime=0)
        return Answer(HTTPStatus.OK, body, content_type, "gzip")

    def _liveness(self) -> Answer:
        if self._sampler.is_fresh():
            return Answer(HTTPStatus.OK, b"ok\n", _PLAIN)
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"sampling has stopped\n", _PLAIN)


_NO_SAMPLE = Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the first sample is not done\n", _PLAIN)


def _accepts_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, weight = coding.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


_MAX_CONNECTIONS = 64
_CONNECTION_TIMEOUT_SECONDS = 15.0


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


class MetricsServer(ThreadingHTTPServer):
    """Listens at once; port 0 takes any free one.

    One request a connection, one thread each: bounded in number and time by ``ConnectionLimiter``.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True
    # With the default of five, the sixth scraper at once waits a second to send its SYN again.
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        sampler: Sampler,
        *,
        node: str = "",
        access_control: AccessControl | None = None,
        events: Callable[[], bytes] = lambda: b"[]",
    ) -> None:
        self.pages = Pages(sampler, node, events)
        self.access_control = access_control or AccessControl()
        self.connections = ConnectionLimiter(_MAX_CONNECTIONS, _CONNECTION_TIMEOUT_SECONDS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)  # type: ignore[arg-type]  # built in finish_request

    def server_bind(self) -> None:
        """Binds without asking a name server for the host's name, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the connection's thread; at the limit the oldest connection is closed."""
        self.connections.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shakes hands, in the connection's own thread, and answers."""
        rules = self.access_control.rules()
        request.settimeout(_Handler.timeout)
        if rules.context is None:
            _Handler(request, client_address, self, rules=rules)
            return
        # No handshake at the accept: a client that stops in it would hold up all others.
        with rules.context.wrap_socket(
            request, server_side=True, do_handshake_on_connect=False
        ) as secured:
            if self.connections.replace(request, secured):
                try:
                    secured.do_handshake()
                    _Handler(secured, client_address, self, rules=rules)
                finally:
                    self.connections.remove(secured)

    def shutdown_request(self, request: Any) -> None:
        """Ends the connection."""
        self.connections.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Closes connections that last too long; called regularly by the loop that accepts."""
        self.connections.close_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing of clients that hang up, never read or do not speak TLS."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Address of the metrics."""
        host, port = self.server_address[:2]
        host_text = f"[{host!s}]" if self.address_family == socket.AF_INET6 else f"{host!s}"
        return f"http{'s' if self.access_control.is_tls else ''}://{host_text}:{port}/metrics"


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "lockstep", ""
    timeout = 10

    def __init__(
        self, request: Any, client_address: Any, server: MetricsServer, *, rules: Rules
    ) -> None:
        self._rules = rules
        super().__init__(request, client_address, server)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        admission = self._rules.admission
        authorization = self.headers.get("Authorization", "")
        if path not in OPEN_TO_ALL and not admission.admits(authorization):
            refused = Answer(HTTPStatus.UNAUTHORIZED, b"unauthorized\n", "text/plain")
            self._send(refused, {"WWW-Authenticate": admission.challenge}, with_body)
            return
        accept, encoding = (self.headers.get(name, "") for name in ("Accept", "Accept-Encoding"))
        self._send(self.server.pages.answer(path, accept, encoding), {}, with_body)

    def _send(self, answer: Answer, extra_headers: dict[str, str], with_body: bool) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if answer.encoding:
            self.send_header("Content-Encoding", answer.encoding)
        for name, value in {
            "Vary": "Accept, Accept-Encoding",
            **self._rules.headers,
            **extra_headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        """Logs nothing: a line for every scrape would bury the rest."""
