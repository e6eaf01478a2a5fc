"""Attacks over HTTP on the doors of agent and ledger."""

import contextlib
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from tenants import users
from tenants.table import Ground, attack

if TYPE_CHECKING:
    from tenants.arena import Arena

_IDLE = 2005


def _idle(ground: Ground, port: int, first: bytes = b"") -> None:
    """Many connections, from addresses that no limit by client joins."""
    for number in range(_IDLE):
        with contextlib.suppress(OSError):
            connection = socket.socket()
            connection.settimeout(0.2)
            connection.bind((f"127.0.{number % 40}.2", 0))
            ground.held.append(connection)
            connection.connect(("127.0.0.1", port))
            if first:
                connection.send(first)


@attack("http", seconds=0.5)
def ledger_idle_connections(ground: Ground) -> None:
    """2,005 idle connections to the ledger, without a token."""
    _idle(ground, ground.ledger_port)


@attack("http", seconds=0.5)
def agent_idle_connections(ground: Ground) -> None:
    """2,005 idle connections to the agent."""
    _idle(ground, ground.agent_port)


@attack("http", seconds=0.5)
def ledger_half_headers(ground: Ground) -> None:
    """2,005 connections to the ledger with half a header each."""
    _idle(ground, ground.ledger_port, b"POST /api/events HTTP/1.1\r\nHost: x\r\nX-")


@attack("http", seconds=0.5)
def agent_half_headers(ground: Ground) -> None:
    """2,005 connections to the agent with half a header each."""
    _idle(ground, ground.agent_port, b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-")


@attack("http", seconds=0.5)
def ledger_slow_bodies(ground: Ground) -> None:
    """2,005 connections to the ledger that announce a body and send one byte of it."""
    head = b"POST /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    token = f"Authorization: Bearer {ground.token}\r\n".encode()
    _idle(ground, ground.ledger_port, head + token + b"Content-Length: 100000\r\n\r\n{")


@attack("http", seconds=0.5)
def agent_readers_that_do_not_read(ground: Ground) -> None:
    """200 scrapes whose answers nobody reads."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.settimeout(0.5)
            ground.held.append(connection)
            connection.connect(("127.0.0.1", ground.agent_port))
            connection.send(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


@attack("http", seconds=0.5)
def agent_flood(ground: Ground) -> None:
    """Scrapes one after the other for two seconds."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            ground.send(ground.agent_port, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            ground.held.pop().close()


@attack("http", seconds=0.2)
def ledger_body_too_long(ground: Ground) -> None:
    """A body of 16 MiB with a launcher's token."""
    ground.post(b"[" + b" " * (16 << 20) + b"]")


@attack("http", seconds=0.2)
def ledger_chunks_without_end(ground: Ground) -> None:
    """A chunked body of 64 MiB with a launcher's token."""
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {ground.token}\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    ground.send(ground.ledger_port, b"POST /api/events HTTP/1.1\r\n" + head.encode() + chunk * 64)


def _is_refused(_: "Arena", obtained: str) -> str:
    return obtained


_BODY = b'{"version": 1, "cluster": "east", "node": "n", "events": []}'


def _status(answer: bytes) -> str:
    return answer[9:12].decode("ascii", "replace")


@attack("http", seconds=0.2, judge=_is_refused)
def ledger_form_of_a_browser(ground: Ground) -> None:
    """A delivery as text/plain, as a form of any web page can send it."""
    status = _status(ground.post(_BODY, headers=("Content-Type: text/plain",)))
    ground.obtained = "" if status.startswith("4") else f"a form is answered {status}"


@attack("http", seconds=0.2, judge=_is_refused)
def ledger_read_with_a_writers_token(ground: Ground) -> None:
    """The neighbour's record asked for with a launcher's token, with none and with guesses."""
    for token in (ground.token, "", "r", "' OR 1=1", "\xff"):
        request = "GET /api/jobs/victim HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        request += f"Authorization: Bearer {token}\r\n\r\n"
        answer = ground.send(ground.ledger_port, request.encode("latin-1"))
        if b"victim-0" in answer:
            ground.obtained = "the record is read without a reader's token"


@attack("http", seconds=1.0)
def ledger_wrong_tokens(ground: Ground) -> None:
    """1,000 requests with wrong tokens."""
    for number in range(1000):
        with contextlib.suppress(OSError):
            ground.post(_BODY, token=f"guess-{number}")
            ground.held.pop().close()


@attack("http", seconds=1.0)
def ledger_dead_letters(ground: Ground) -> None:
    """300 deliveries with 100 wrong events each."""
    line = b'{"id": "%d", "kind": "X", "job_id": "' + b"x" * 199 + b'"}'
    for number in range(300):
        ground.deliver(*(line % (number * 100 + each) for each in range(100)))
        ground.held.pop().close()


def _agent_refuses(arena: "Arena", _: str) -> str:
    words = ("agent", "--listen", "0.0.0.0:0", "--dir", arena.root, "--state", arena.base / "other")
    try:
        done = subprocess.run(
            users.command(users.ROOT, *words),
            capture_output=True,
            timeout=4,
            check=False,
            cwd="/",
            env=users.environment(arena.base / "attacker"),
        )
    except subprocess.TimeoutExpired:
        return "the agent serves every address without credentials"
    return "" if done.returncode else "the agent ended with status 0"


@attack("http", seconds=0.1, judge=_agent_refuses)
def agent_open_to_all(_: Ground) -> None:
    """Nothing: an operator starts a second agent on every address, without credentials."""
