"""Allowed hosts and origins, rate limit, access log."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep_cli.small_server import Hosts, RateLimit

_log = logging.getLogger("lockstep_ledger.access")
_LOG_SECONDS = 0.2
_MAX_LOGGED = 200
LOG_NAME = "lockstep ledger"
"""What every line of the log begins with."""
OPEN_TO_ALL = frozenset({"/healthz", "/ready"})
"""Probes have no token, and the answers reveal nothing."""
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


def _objection_to_body(headers: Headers) -> str:
    """Why a body that is not declared as plain JSON is refused; a foreign page sends no others."""
    content_type = headers.get("content-type", "")
    kind, _, parameter = content_type.lower().partition(";")
    if kind.strip() != "application/json" or parameter.strip() not in {"", "charset=utf-8"}:
        return f"Content-Type {content_type!r:.80} is not taken; send application/json"
    if headers.get("content-encoding", "identity").lower() != "identity":
        return "a compressed body is not taken; send it as it is"
    return ""


@dataclass(slots=True)
class AccessLog:
    """Logs each request once it is answered, counts answers, and refuses foreign requests.

    Whoever has an accepted token, by ``digest``, has a rate of his own: strangers behind the same
    address do not use it up. Probes are always answered. Of ``answers`` the keys are such as 2xx.
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
        headers = Headers(scope=scope)
        digest = self.digest(headers.get("authorization", ""))
        wait_seconds = self.rate_limit.wait_seconds((client, digest))
        if wait_seconds:
            sentence = f"too many requests; send again in {wait_seconds:.1f} s"
            retry = {"Retry-After": str(math.ceil(wait_seconds))}
            return JSONResponse({"error": sentence}, 429, retry)
        sentence = self.hosts.objection(headers.getlist("host"), headers.getlist("origin"))
        if sentence:
            return JSONResponse({"error": sentence}, 403)
        if scope["method"] == "POST" and (sentence := _objection_to_body(headers)):
            return JSONResponse({"error": sentence}, 415)
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


def client_of(scope: Scope) -> str:
    """Address of the client; empty where the server knows none."""
    client = scope.get("client")
    return str(client[0]) if client else ""
