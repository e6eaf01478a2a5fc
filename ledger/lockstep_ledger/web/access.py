"""Who may write and who may read, by tokens; how often a client may ask; and the access log."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("lockstep_ledger.access")
_MIN_TOKEN_CHARACTERS = 16
_MAX_TOKEN_FILE_BYTES = 64 << 10
_MAX_CLIENTS = 10_000
_LOG_SECONDS = 0.2
LOG_NAME = "lockstep ledger"
"""What every line of the log begins with."""
OPEN_TO_ALL = frozenset({"/healthz", "/ready"})
"""Probes have no token, and the answers reveal nothing."""


class Tokens:
    """Digests of tokens; without any, everybody is admitted."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._digests = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)

    def admits(self, authorization: str) -> bool:
        """Whether a header ``Authorization`` carries one of them, as bearer or as password."""
        if not self._digests:
            return True
        token = _token(authorization)
        if token is None:
            return False
        digest = hashlib.sha256(token).digest()
        # A sum compares with all of them, so that the time does not show which one was close.
        return sum(hmac.compare_digest(digest, accepted) for accepted in self._digests) > 0


def _token(authorization: str) -> bytes | None:
    """The token of a header; browsers send it as the password of any user."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode()
    if scheme.lower() != "basic":
        return None
    try:
        _, colon, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return password if colon else None


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens of a file, one a line; lines that begin with # are comments.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_TOKEN_FILE_BYTES).decode("ascii")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} holds more than ASCII; give one token a line") from error
    lines = [line.strip() for line in text.splitlines()]
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens or any(len(token) < _MIN_TOKEN_CHARACTERS for token in tokens):
        raise ValueError(
            f"{path} must hold one token a line, each of {_MIN_TOKEN_CHARACTERS} characters or more"
        )
    return tokens


@dataclass(slots=True)
class RateLimit:
    """A bucket of requests for each client: full at first, refilled with time.

    Args:
        requests_per_second: refill; ten seconds' worth fit in.
        clock: monotonic, in seconds.
    """

    requests_per_second: float
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)

    def wait_seconds(self, client: str) -> float:
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
    """Logs each request once it is answered, refuses clients that ask too often, counts answers.

    Attributes:
        answers: number of answers by class, such as 2xx.
    """

    app: ASGIApp
    rate_limit: RateLimit
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
            sent_bytes += len(message.get("body", b""))
            await send(message)

        client = client_of(scope)
        try:
            wait_seconds = self.rate_limit.wait_seconds(client)
            app = _too_many(wait_seconds) if wait_seconds else self.app
            await app(scope, receive, send_and_count)
        finally:
            self.answers[f"{status // 100}xx"] += 1
            self._log(
                f"method={scope['method']} path={scope['path']!r} status={status}"
                f" seconds={time.perf_counter() - begin_seconds:.4f} bytes={sent_bytes}"
                f" client={client}"
            )

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


class BodyTooLargeError(ValueError):
    """A body over the limit; the text says how much is allowed."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body of a request.

    Raises:
        BodyTooLargeError: it is longer than ``max_bytes``; the rest is not read.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise BodyTooLargeError(
                f"the body is longer than {max_bytes} bytes; send fewer events at once"
            )
    return bytes(body)
