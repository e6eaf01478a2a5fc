"""Servers in threads of a test, a ledger that keeps what it is sent, ports, and waits."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any, TypeVar

import httpx
import pytest

AServer = TypeVar("AServer", bound=BaseServer)
Answer = TypeVar("Answer")
Answered = tuple[int, bytes, dict[str, str]]


def wait_until(
    condition: Callable[[], Answer], seconds: float = 60, says: Callable[[], object] = str,
    *, pause: float = 0.02,
) -> Answer:  # fmt: skip
    """What the condition answers once it is true; after so many seconds a failure that ``says``."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, says()
        time.sleep(pause)
    return answer


def free_port() -> int:
    """One that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """A program that has ended, with its status and what it printed."""
    check = options.pop("check", False)
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)


@contextmanager
def running(command: Sequence[str], log: Path, ready: str) -> Iterator[bool]:
    """A server as a process until the block ends; whether it lived to answer at an address."""
    with log.open("wb") as file:
        server = subprocess.Popen(command, cwd=log.parent, stdout=file, stderr=file)

    def has_begun() -> bool:
        try:
            return httpx.get(ready, timeout=5, trust_env=False).is_success
        except httpx.TransportError:
            return server.poll() is not None

    try:
        wait_until(has_begun)
        yield server.poll() is None
    finally:
        server.kill()
        server.wait()


@contextmanager
def serving(server: AServer) -> Iterator[AServer]:
    """The server, which answers in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


class Answering(ThreadingHTTPServer):
    """Answers every request with the status, body and headers that ``answer`` gives."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.target = f"127.0.0.1:{self.server_port}"

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> Answered | None:
        """What a request with this body gets; None where it has been written."""
        raise NotImplementedError


class _Request(BaseHTTPRequestHandler):
    server: Answering

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answered = self.server.answer(self, body)
        if answered is None:
            return
        status, reply, headers = answered
        self.send_response(status)
        for name, value in {"Content-Length": str(len(reply)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        pass


class Exposition(Answering):
    """Answers every GET with the text that ``exposition`` gives, as what is scraped does."""

    def exposition(self) -> str:
        raise NotImplementedError

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> Answered:
        """A scrape."""
        del request, body
        return 200, self.exposition().encode(), {"Content-Type": "text/plain; version=0.0.4"}


class FakeLedger(Answering):
    """A ledger that keeps the deliveries it takes and answers with what a test sets."""

    block_on_close = False

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int] = []
        self.bad_ids: set[str] = set()
        self.token = ""
        self.tokens: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/events"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for body in self.bodies for event in body["events"]]

    @property
    def ids(self) -> list[str]:
        """Their identities, in the order they came."""
        return [event["id"] for event in self.events]

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> Answered:
        """Takes or refuses one delivery."""
        self.tokens.append(request.headers.get("Authorization", ""))
        sent = json.loads(body)
        status = self.statuses.pop(0) if self.statuses else 200
        ids = [event["id"] for event in sent.get("events", ())]
        bad = [each for each in ids if each in self.bad_ids]
        status = 422 if bad and bad == ids else status
        if self.token and self.tokens[-1] != f"Bearer {self.token}":
            status = 401
        if status == 200:
            good = [event for event in sent.get("events", ()) if event["id"] not in bad]
            self.bodies.append({**sent, "events": good} if bad else sent)
        rejected = [{"id": each, "reason": "it is bad"} for each in bad]
        reply = json.dumps({"rejected": rejected}).encode()
        reply = b"the token is not one of a writer" if status == 401 else reply
        return status, reply, {}


@pytest.fixture(name="ledger")
def _ledger() -> Iterator[FakeLedger]:
    """A ledger that answers while the test runs."""
    with serving(FakeLedger()) as ledger:
        yield ledger
