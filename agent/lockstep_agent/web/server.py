"""The HTTP server of metrics and health: its pages, rendered once a tick."""

import gzip
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import Any

from lockstep_agent.exposition.dcgm_names import render_dcgm
from lockstep_agent.exposition.text import Exposition
from lockstep_agent.health.judge import health_of
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.web.access_control import AccessControl
from lockstep_cli.small_server import HTML, JSON, PLAIN, Answer, Request, SmallHandler, SmallServer

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
SOCKET_NAME = "agent.sock"
# They reveal nothing of the node, and a kubelet's probe has no password.
OPEN_TO_ALL = frozenset({"/healthz", "/ready"})
_MIN_GZIP_BYTES = 1000
# The fastest level: a body may be compressed every tick.
_GZIP_LEVEL = 1


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
                "dcgm", lambda latest: render_dcgm(latest.readings, self._node), PLAIN, is_gzip
            )
        if path == "/health":
            return self._render_sample("health", self._health, JSON, is_gzip)
        return self._plain(path)

    def _health(self, latest: Exposition) -> bytes:
        return json.dumps(health_of(latest, self._node)).encode() + b"\n"

    def _plain(self, path: str) -> Answer:
        """The pages that are not rendered from a sample and never compressed."""
        if path == "/events":
            return Answer(HTTPStatus.OK, self._events(), JSON)
        if path in OPEN_TO_ALL:
            return self._liveness()
        if path == "/":
            return Answer(HTTPStatus.OK, _INDEX, HTML)
        return Answer(HTTPStatus.NOT_FOUND, b"not here; try /metrics\n", PLAIN)

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
        return Answer(HTTPStatus.OK, body, content_type, {"Content-Encoding": "gzip"})

    def _liveness(self) -> Answer:
        if self._sampler.is_fresh():
            return Answer(HTTPStatus.OK, b"ok\n", PLAIN)
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"sampling has stopped\n", PLAIN)


_NO_SAMPLE = Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the first sample is not done\n", PLAIN)


def _accepts_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, weight = coding.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


class NodeChannel(SmallServer):
    """The pages for root's scripts, at a socket in the agent's folder of state.

    A port on the loopback is anybody's while the agent restarts; in its folder nobody else listens.

    Raises:
        OSError: the folder is missing, or its path is too long for a socket.
    """

    def __init__(self, folder: Path, pages: Pages) -> None:
        self._pages = pages
        super().__init__(str(folder.absolute() / SOCKET_NAME), 0)

    def respond(self, request: Request) -> Answer:
        """The page."""
        return self._pages.answer(request.path)


class MetricsServer(SmallServer):
    """Serves the pages; port 0 takes any free one.

    Args:
        node: another name by which the machine is asked.

    Raises:
        OSError: the address cannot be listened on.
    """

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
        super().__init__(host, port, names=(node,))

    def objection(self, headers: Message) -> str:
        """Where credentials are asked for a name decides nothing: no other site has them."""
        return "" if self.access_control.has_credentials else super().objection(headers)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shakes hands, in the connection's own thread, and answers."""
        context = self.access_control.rules().context
        if context is None:
            super().finish_request(request, client_address)
            return
        # No handshake at the accept: a client that stops in it would hold up all others.
        request.settimeout(SmallHandler.timeout)
        with context.wrap_socket(
            request, server_side=True, do_handshake_on_connect=False
        ) as secured:
            if self.connections.replace(request, secured):
                try:
                    secured.do_handshake()
                    super().finish_request(secured, client_address)
                finally:
                    self.connections.remove(secured)

    def respond(self, request: Request) -> Answer:
        """The page, where the request may see it; headers as the web configuration says."""
        rules = self.access_control.rules()
        status = HTTPStatus.OK
        if request.path not in OPEN_TO_ALL:
            header = request.headers.get("Authorization", "")
            status = rules.admission.judge(header, request.client)
        if request.method == "POST":
            answer = Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET and HEAD only\n")
        elif status is HTTPStatus.OK:
            answer = self.pages.answer(
                request.path,
                *(request.headers.get(name, "") for name in ("Accept", "Accept-Encoding")),
            )
        else:
            challenge = {"WWW-Authenticate": rules.admission.challenge}
            answer = Answer(status, f"{status.phrase.lower()}\n".encode(), PLAIN, challenge)
        vary = {"Vary": "Accept, Accept-Encoding"}
        return replace(answer, headers={**vary, **rules.headers, **answer.headers})

    @property
    def url(self) -> str:
        """Address of the metrics."""
        return f"http{'s' if self.access_control.is_tls else ''}://{self.address}/metrics"
