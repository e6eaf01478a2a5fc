"""Serves the bytes of the newest exposition over HTTP; a scrape never touches a source."""

import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lockstep_agent.dcgm_names import in_dcgm_names
from lockstep_agent.sampler import Sampler

_PLAIN = "text/plain; charset=utf-8"
_INDEX = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>lockstep agent</title>
<h1>lockstep agent</h1>
<ul><li><a href="/metrics">/metrics</a>: GPUs, network ports and ranks of this node</li>
<li><a href="/metrics/dcgm">/metrics/dcgm</a>: the GPUs in the names of dcgm-exporter</li>
<li><a href="/events">/events</a>: recent incidents of the kernel log</li>
<li><a href="/healthz">/healthz</a>: whether sampling goes on</li></ul></html>
"""


class MetricsServer(ThreadingHTTPServer):
    """Listens at once; port 0 takes any free one.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True
    request_queue_size = 128  # with five, the sixth scraper at once waits a second for its SYN

    def __init__(
        self,
        host: str,
        port: int,
        sampler: Sampler,
        node: str = "",
        events: Callable[[], bytes] = lambda: b"[]",
    ) -> None:
        self.sampler, self.node, self.events = sampler, node, events
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Binds without asking a name server who we are, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leaves out those who hang up or never read: that is their affair."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else f"{host!s}"
        return f"http://{shown}:{port}/metrics"


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "lockstep", ""
    timeout = 10

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer_metrics()
        elif path == "/metrics/dcgm":
            self._answer_dcgm()
        elif path == "/events":
            self._send(HTTPStatus.OK, self.server.events(), "application/json")
        elif path == "/healthz":
            self._answer_health()
        elif path == "/":
            self._send(HTTPStatus.OK, _INDEX, "text/html; charset=utf-8")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"not here; try /metrics\n", _PLAIN)

    def _answer_metrics(self) -> None:
        latest = self.server.sampler.latest
        if latest is None:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, b"the first sample is not done\n", _PLAIN)
        else:
            self._send(HTTPStatus.OK, *latest.choose(self.headers.get("Accept", "")))

    def _answer_dcgm(self) -> None:
        latest = self.server.sampler.latest
        body = b"" if latest is None else in_dcgm_names(latest.readings, self.server.node)
        self._send(HTTPStatus.OK, body, _PLAIN)

    def _answer_health(self) -> None:
        if self.server.sampler.is_fresh():
            self._send(HTTPStatus.OK, b"ok\n", _PLAIN)
        else:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, b"sampling has stopped\n", _PLAIN)

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        """Says nothing: a line for every scrape would bury the log."""
