"""Serves the bytes of the newest exposition over HTTP; a scrape never touches a source."""

import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.web import AccessControl, ConnectionLimiter, Rules
from lockstep_agent.web.responses import OPEN_TO_ALL, Answer, Pages

_MOST_CONNECTIONS = 64
_PATIENCE_SECONDS = 15.0


class MetricsServer(ThreadingHTTPServer):
    """Listens at once; port 0 takes any free one.

    One request a connection, one thread each: bounded in number and time by the connections.

    Args:
        access_control: TLS and who may ask.

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
        *,
        node: str = "",
        access_control: AccessControl | None = None,
        events: Callable[[], bytes] = lambda: b"[]",
    ) -> None:
        self.pages, self.access_control = (
            Pages(sampler, node, events),
            access_control or AccessControl(),
        )
        self.connections = ConnectionLimiter(_MOST_CONNECTIONS, _PATIENCE_SECONDS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)  # type: ignore[arg-type]  # made in finish_request

    def server_bind(self) -> None:
        """Binds without asking a name server who we are, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begins the connection's thread; who is too many makes the oldest go."""
        self.connections.enter(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shakes hands, in the connection's own thread, and answers."""
        rules = self.access_control.rules()
        request.settimeout(_Handler.timeout)
        if rules.context is None:
            _Handler(request, client_address, self, rules=rules)
            return
        with rules.context.wrap_socket(
            request, server_side=True, do_handshake_on_connect=False
        ) as secured:
            if self.connections.replace(request, secured):
                try:
                    secured.do_handshake()
                    _Handler(secured, client_address, self, rules=rules)
                finally:
                    self.connections.leave(secured)

    def shutdown_request(self, request: Any) -> None:
        """Ends the connection."""
        self.connections.leave(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Now and then, from the loop that accepts: ends what takes too long."""
        self.connections.cut_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leaves out those who hang up, never read or speak no TLS: that is their affair."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else f"{host!s}"
        return f"http{'s' if self.access_control.is_tls else ''}://{shown}:{port}/metrics"


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
        told = self.headers.get("Authorization", "")
        if path not in OPEN_TO_ALL and not admission.admits(told):
            refused = Answer(HTTPStatus.UNAUTHORIZED, b"who are you?\n", "text/plain")
            self._send(refused, {"WWW-Authenticate": admission.asks}, with_body)
            return
        accept, encoding = (self.headers.get(name, "") for name in ("Accept", "Accept-Encoding"))
        self._send(self.server.pages.answer(path, accept, encoding), {}, with_body)

    def _send(self, answer: Answer, more: dict[str, str], with_body: bool) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if answer.encoding:
            self.send_header("Content-Encoding", answer.encoding)
        for name, value in {
            "Vary": "Accept, Accept-Encoding",
            **self._rules.headers,
            **more,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        """Says nothing: a line for every scrape would bury the log."""
