"""The answer of each path, rendered once a tick and served as bytes."""

import gzip
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from lockstep_agent.exposition.dcgm_names import render_dcgm
from lockstep_agent.exposition.text import Exposition
from lockstep_agent.health.verdicts import health_of
from lockstep_agent.runtime.sampler import Sampler

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
