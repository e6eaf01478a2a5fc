"""Exchanges of HTTP within bounds of bytes and seconds in all; no redirect is followed."""

import contextlib
import json
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from lockstep_records.file_access.token_files import read_token

_DEADLINE_SECONDS, _WAIT_SECONDS = 10.0, 9.0
_MAX_ANSWER_BYTES = 16 << 20
_FOREIGN = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of an answer."""

    status: int
    body: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is asked of a server.

    Attributes:
        wait_seconds: for which the other side may be silent; ten seconds are the end in any case.
        max_bytes: of the answer; what is beyond is not read.
    """

    url: str
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str]
    ca_file: Path | None = None
    wait_seconds: float
    max_bytes: int


def exchange(request: Request) -> Answer:
    """The answer; raises OSError without one in time, ValueError where the address is malformed."""
    url = urlsplit(request.url)
    connection = _connection(request, url.hostname or "", url.port)
    # Socket time-outs bound each wait alone; an answer of one byte a second has no end.
    connection.connect()
    end_seconds = time.monotonic() + _DEADLINE_SECONDS
    # The connection forgets its socket where the answer has no length.
    timer = threading.Timer(_DEADLINE_SECONDS, _hang_up, (connection.sock,))
    timer.start()
    try:
        target = f"{url.path or '/'}{'?' * bool(url.query)}{url.query}"
        connection.request(request.method, target, request.body, dict(request.headers))
        answer = connection.getresponse()
        body = answer.read(request.max_bytes)
        if time.monotonic() >= end_seconds:
            raise TimeoutError(f"no whole answer within {_DEADLINE_SECONDS:g} s")
        return Answer(answer.status, body)
    except HTTPException as error:
        raise OSError(f"no answer of HTTP ({error!r})") from error
    finally:
        timer.cancel()
        connection.close()


def _connection(request: Request, host: str, port: int | None) -> HTTPConnection:
    if not request.url.startswith("https://"):
        return HTTPConnection(host, port, timeout=request.wait_seconds)
    context = ssl.create_default_context(cafile=request.ca_file and str(request.ca_file))
    return HTTPSConnection(host, port, timeout=request.wait_seconds, context=context)


def _hang_up(connected: socket.socket) -> None:
    """Ends a wait of another thread for the other side."""
    with contextlib.suppress(OSError):  # it has ended already
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class ServerError(ValueError):
    """A server does not answer, or is not what it is taken for; the text is one sentence."""


class Server:
    """A server of somebody's own; user and password of its address are sent, and never written.

    A malformed address is a ServerError.

    Args:
        product: what it must be, such as Alertmanager.
        token_file: of a bearer token, instead of user and password.
    """

    def __init__(
        self, url: str, product: str, *, token_file: Path | None = None, ca_file: Path | None = None
    ) -> None:
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            masked = url.rpartition("@")[2]
            raise ServerError(f"{masked!r} is not an address of {product}; give http://HOST:PORT")
        login, _, host = parts.netloc.rpartition("@")
        self.address = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._product, self._token_file, self._ca_file = product, token_file, ca_file
        self._login = b64encode(unquote(login).encode()).decode()

    def ask(self, path: str, read: Callable[[Any], Read], query: Sequence[str] = ()) -> Read:
        """What ``read`` makes of the JSON at a path; whatever it raises, the product is another.

        ``query`` has parameters as ``name=value``.
        """
        pairs = (each.partition("=") for each in query)
        words = "&".join(f"{name}={quote(value, safe='')}" for name, _, value in pairs)
        return self._read(self.send("GET", f"{path}{'?' * bool(words)}{words}"), read)

    def post(self, path: str, body: object, read: Callable[[Any], Read]) -> Read:
        """What ``read`` makes of the answer to a body that is sent as JSON."""
        return self._read(self.send("POST", path, json.dumps(body).encode()), read)

    def send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The body of the answer; ServerError where there is none, or not of a status 2xx."""
        headers = {"Content-Type": "application/json"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {read_token(self._token_file)}"
        elif self._login:
            headers["Authorization"] = f"Basic {self._login}"
        request = Request(
            url=f"{self.address}{path}",
            method=method,
            body=body,
            headers=headers,
            ca_file=self._ca_file,
            wait_seconds=_WAIT_SECONDS,
            max_bytes=_MAX_ANSWER_BYTES + 1,
        )
        try:
            answer = exchange(request)
        except (OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise ServerError(f"{self.address} does not answer: {reason}") from error
        if answer.status // 100 != HTTPStatus.OK // 100:
            refuses = answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
            remedy = "; check user and password, or the token" if refuses else ""
            raise ServerError(f"{self.address} answers with status {answer.status}{remedy}")
        if len(answer.body) > _MAX_ANSWER_BYTES:
            raise ServerError(f"{self.address} answers with more than {_MAX_ANSWER_BYTES:,} bytes")
        return answer.body

    def _read(self, body: bytes, read: Callable[[Any], Read]) -> Read:
        try:
            return read(json.loads(body))
        except _FOREIGN as error:
            sentence = f"{self.address} answers, but is no {self._product}"
            raise ServerError(sentence) from error
