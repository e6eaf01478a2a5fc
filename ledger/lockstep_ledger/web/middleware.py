"""Allowed hosts and origins, rate limit, access log."""

import asyncio
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep_cli.small_server import is_address

_log = logging.getLogger("lockstep_ledger.access")
_MAX_CLIENTS = 10_000
_LOG_SECONDS = 0.2
_MAX_LOGGED = 200
LOG_NAME = "lockstep ledger"
"""What every line of the log begins with."""
OPEN_TO_ALL = frozenset({"/healthz", "/ready"})
"""Probes have no token, and the answers reveal nothing."""
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain"})
_HOST = re.compile(r"(?:\[(?P<ip>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
# Nothing is loaded from elsewhere, no script runs, and no other page gets at an answer.
_CONTENT_POLICY = (
    b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self';"
    b" frame-ancestors 'none'"
)
_SECURITY_HEADERS = [
    (b"content-security-policy", _CONTENT_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class RefusedRequestError(ValueError):
    """A request that is refused before anything of it is read; the text is the answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Hosts:
    """The names by which this ledger is called, so that no page of elsewhere reaches it.

    A page whose name was turned to the ledger's address (DNS rebinding) sends its own name as
    ``Host``. An address is not such a name, and is always admitted.

    Args:
        names: besides those of loopback, in small letters.
    """

    names: frozenset[str] = frozenset()

    def check(self, headers: Headers) -> None:
        """Refuses requests to another host or from a page of another origin.

        Raises:
            RefusedRequestError: it is one.
        """
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._admits(hosts[0]):
            raise RefusedRequestError(
                403,
                f"host {', '.join(hosts)!r:.80} is not this ledger's; use its address, or start it"
                " with --allowed-host",
            )
        for origin in headers.getlist("origin"):
            if origin.partition("://")[2].lower() != hosts[0].lower():
                raise RefusedRequestError(
                    403, f"origin {origin!r:.80} is not this ledger; open its own pages"
                )

    def _admits(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["ip"] or match["name"]).lower().removesuffix(".")
        return name in _LOOPBACK_NAMES or name in self.names or is_address(name)


def check_json(headers: Headers) -> None:
    """Refuses bodies that are not declared as plain JSON; a foreign page can send no others.

    Raises:
        RefusedRequestError: the type is another one, or the body is compressed.
    """
    content_type = headers.get("content-type", "")
    kind, _, parameter = content_type.lower().partition(";")
    if kind.strip() != "application/json" or parameter.strip() not in {"", "charset=utf-8"}:
        raise RefusedRequestError(
            415, f"Content-Type {content_type!r:.80} is not taken; send application/json"
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise RefusedRequestError(415, "a compressed body is not taken; send it as it is")


@dataclass(slots=True)
class RateLimit:
    """A bucket of requests for each client: full at first, refilled with time.

    Args:
        requests_per_second: refill; ten seconds' worth fit in.
        clock: monotonic, in seconds.
    """

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


@dataclass(slots=True)
class AccessLog:
    """Logs each request once it is answered, counts answers, and refuses foreign requests.

    Whoever has an accepted token has a rate of his own: strangers behind the same address do not
    use it up. Probes are always answered.

    Args:
        hosts: by which the ledger is called.
        digest: of the token of a header, empty where it is not accepted.

    Attributes:
        answers: number of answers by class, such as 2xx.
    """

    app: ASGIApp
    rate_limit: RateLimit
    hosts: Hosts
    digest: Callable[[str], bytes]
    answers: Counter[str] = field(default_factory=Counter)
    _lines: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin_seconds = time.perf_counter()
        status, sent_bytes = 500, 0

        async def send_and_count(message: Message) -> None:
            nonlocal status, sent_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_SECURITY_HEADERS]
            sent_bytes += len(message.get("body", b""))
            await send(message)

        client = client_of(scope)
        try:
            app = self.app if scope["path"] in OPEN_TO_ALL else self._admit(scope, client)
            await app(scope, receive, send_and_count)
        finally:
            self.answers[f"{status // 100}xx"] += 1
            self._log(
                f"method={scope['method']} path={scope['path'][:_MAX_LOGGED]!r} status={status}"
                f" seconds={time.perf_counter() - begin_seconds:.4f} bytes={sent_bytes}"
                f" client={client}"
            )

    def _admit(self, scope: Scope, client: str) -> ASGIApp:
        """What answers: the application, or a refusal."""
        headers = Headers(scope=scope)
        digest = self.digest(headers.get("authorization", ""))
        wait_seconds = self.rate_limit.wait_seconds((client, digest))
        if wait_seconds:
            return _too_many(wait_seconds)
        try:
            self.hosts.check(headers)
            if scope["method"] == "POST":
                check_json(headers)
        except RefusedRequestError as error:
            return JSONResponse({"error": str(error)}, error.status)
        return self.app

    def _log(self, line: str) -> None:
        """Writes the lines of a moment at once: a write for each costs as much as its answer."""
        if not self._lines:
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self.flush)
        self._lines.append(line)

    def flush(self) -> None:
        """Writes the lines that wait."""
        lines, self._lines = self._lines, []
        if lines:
            _log.info("%s", f"\n{LOG_NAME}: level=INFO ".join(lines))


def _too_many(wait_seconds: float) -> ASGIApp:
    sentence = f"too many requests; send again in {wait_seconds:.1f} s"
    headers = {"Retry-After": str(math.ceil(wait_seconds))}
    return JSONResponse({"error": sentence}, 429, headers)


def client_of(scope: Scope) -> str:
    """Address of the client; empty where the server knows none."""
    client = scope.get("client")
    return str(client[0]) if client else ""
