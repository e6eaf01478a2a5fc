"""What each path is answered with, made once for each tick and handed out as bytes."""

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from lockstep_agent.exposition.dcgm_names import in_dcgm_names
from lockstep_agent.exposition.text import Exposition
from lockstep_agent.health.page import health_page
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
<li><a href="/healthz">/healthz</a>: whether sampling goes on</li></ul></html>
"""
# these tell nothing of the node, and a kubelet's probe has no password
OPEN_TO_ALL = frozenset({"/healthz", "/ready"})
_WORTH_SQUEEZING = 1000
_FASTEST = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, before it is sent."""

    status: HTTPStatus
    body: bytes
    content_type: str
    encoding: str = ""


class Pages:
    """Every page of the agent.

    Args:
        sampler: has the newest exposition.
        node: name of this machine.
        events: recent incidents and hangs as JSON.
    """

    def __init__(
        self, sampler: Sampler, node: str, events: Callable[[], bytes] = lambda: b"[]"
    ) -> None:
        self._sampler, self._node, self._events = sampler, node, events
        self._lock = threading.Lock()
        self._of: Exposition | None = None
        self._made: dict[tuple[str, bool], bytes] = {}

    def answer(self, path: str, accept: str = "", accept_encoding: str = "") -> Answer:
        """The answer to a GET of this path, without its query."""
        squeezed = _takes_gzip(accept_encoding)
        if path == "/metrics":
            return self._metrics(accept, squeezed)
        if path == "/metrics/dcgm":
            return self._of_sample(
                "dcgm", lambda latest: in_dcgm_names(latest.readings, self._node), _PLAIN, squeezed
            )
        if path == "/health":
            return self._of_sample(
                "health", lambda latest: health_page(latest, self._node), _JSON, squeezed
            )
        return self._plain(path)

    def _plain(self, path: str) -> Answer:
        """The pages that are the same for everybody and squeezed for nobody."""
        if path == "/events":
            return Answer(HTTPStatus.OK, self._events(), _JSON)
        if path in OPEN_TO_ALL:
            return self._liveness()
        if path == "/":
            return Answer(HTTPStatus.OK, _INDEX, _HTML)
        return Answer(HTTPStatus.NOT_FOUND, b"not here; try /metrics\n", _PLAIN)

    def _metrics(self, accept: str, squeezed: bool) -> Answer:
        latest = self._sampler.latest
        if latest is None:
            return _NO_SAMPLE
        body, content_type = latest.choose(accept)
        return self._of_sample(content_type, lambda _: body, content_type, squeezed, latest)

    def _of_sample(
        self,
        name: str,
        make: Callable[[Exposition], bytes],
        content_type: str,
        squeezed: bool,
        latest: Exposition | None = None,
    ) -> Answer:
        """What ``make`` gives for the newest sample, made once however many ask at once."""
        latest = latest or self._sampler.latest
        if latest is None:
            return _NO_SAMPLE
        with self._lock:
            if self._of is not latest:
                self._of, self._made = latest, {}
            plain = self._made.get((name, False))
            if plain is None:
                plain = self._made[name, False] = make(latest)
            if not squeezed or len(plain) < _WORTH_SQUEEZING:
                return Answer(HTTPStatus.OK, plain, content_type)
            body = self._made.get((name, True))
            if body is None:
                body = self._made[name, True] = gzip.compress(plain, _FASTEST, mtime=0)
        return Answer(HTTPStatus.OK, body, content_type, "gzip")

    def _liveness(self) -> Answer:
        if self._sampler.is_fresh():
            return Answer(HTTPStatus.OK, b"ok\n", _PLAIN)
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"sampling has stopped\n", _PLAIN)


_NO_SAMPLE = Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the first sample is not done\n", _PLAIN)


def _takes_gzip(accept_encoding: str) -> bool:
    for one in accept_encoding.lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False
