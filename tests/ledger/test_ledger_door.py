"""The running service under attack: its neighbour is answered within half a second meanwhile."""

import http.client
import json
import resource
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from lockstep_ledger.web.connections import (
    ANSWER_SECONDS,
    BODY_SECONDS,
    HEAD_SECONDS,
    MAX_OF_A_CLIENT,
    Connection,
    Connections,
)

from .service import LedgerProcess, ledger_process
from .stories import Story, delivery

pytestmark = pytest.mark.server
WRITER, READER = "w" * 20, "r" * 20
LIMIT_SECONDS = 0.5
HEAD = b"POST /api/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BEARER = f"Authorization: Bearer {WRITER}\r\n".encode()
Attack = Callable[[int], AbstractContextManager[None]]


@pytest.fixture(scope="module", name="ledger")
def _ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerProcess]:
    folder = tmp_path_factory.mktemp("ledger")
    for name, token in (("writers", WRITER), ("readers", READER)):
        (folder / name).write_text(token, encoding="ascii")
    options = ("--writer-tokens", str(folder / "writers"), "--reader-tokens",
               str(folder / "readers"), "--allowed-host", "ledger.example")  # fmt: skip
    with ledger_process(folder / "ledger.db", *options) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in "".join(process.lines)


def ask(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    """Status and body of an answer, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, names)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def neighbour(port: int) -> float:
    """Writes, reads, scrapes and probes as everybody may; the longest time in seconds."""
    times = []
    for round_number in range(5):
        story = Story(job_id=f"n{time.time_ns()}{round_number}", now=time.time() - 9).start()
        writer = {"Authorization": f"Bearer {WRITER}", "Content_Type": "application/json"}
        reader = {"Authorization": f"Bearer {READER}"}
        for method, path, body, headers in (
            ("POST", "/api/events", delivery(story.events), writer),
            ("GET", "/api/jobs?limit=5", None, reader),
            ("GET", "/metrics", None, reader),
            ("GET", "/healthz", None, {}),
        ):
            begin = time.perf_counter()
            status, _ = ask(port, method, path, body, **headers)
            times.append(time.perf_counter() - begin)
            assert status == 200, path
    return max(times)


@contextmanager
def connected(port: int, number: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections from several addresses, each with some first bytes sent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, number + 500)), hard))
    opened: list[socket.socket] = []
    sources = cycle(f"127.0.0.{last}" for last in range(1, 20))
    try:
        for _ in range(number):
            opened.append(
                socket.create_connection(("127.0.0.1", port), 10, source_address=(next(sources), 0))
            )
            if first:
                opened[-1].sendall(first)
        yield opened
    finally:
        for one in opened:
            one.close()


@contextmanager
def repeated(action: Callable[[], None]) -> Iterator[None]:
    """Does something again and again in a thread of its own."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                action()
            except OSError:
                stop.wait(0.01)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def idle(port: int) -> Iterator[None]:
    with connected(port, 2005):
        yield


@contextmanager
def trickled(port: int, first: bytes, more: bytes) -> Iterator[None]:
    with connected(port, 400, first) as opened:

        def trickle() -> None:
            for one in opened:
                try:
                    one.sendall(more)
                except OSError:
                    continue
            time.sleep(0.05)

        with repeated(trickle):
            yield


def streamed(port: int, first: bytes, more: bytes) -> AbstractContextManager[None]:
    """Sends without an end, and again on a new connection where it is closed."""

    def stream() -> None:
        with socket.create_connection(("127.0.0.1", port), 2) as one:
            one.sendall(first)
            end = time.monotonic() + 1
            while time.monotonic() < end:
                one.sendall(more)

    return repeated(stream)


@contextmanager
def unread(port: int) -> Iterator[None]:
    request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READER}\r\n\r\n"
    with connected(port, 200, request.encode()):
        yield


CHUNKED = HEAD + BEARER + b"Transfer-Encoding: chunked\r\n\r\n"
ATTACKS: dict[str, Attack] = {
    "2,005 idle connections": idle,
    "slow headers": lambda port: trickled(port, HEAD, b"X-a: b\r\n"),
    "slow bodies": lambda port: trickled(
        port, HEAD + BEARER + b"Content-Length: 9999\r\n\r\n", b"["
    ),
    "bodies of strangers": lambda port: trickled(
        port, HEAD + b"Content-Length: 9999\r\n\r\n", b"["
    ),
    "a header without an end": lambda port: streamed(port, HEAD + b"X-a: ", b"a" * 65536),
    "headers without an end": lambda port: streamed(port, HEAD, b"X-a: b\r\n" * 8192),
    "a target without an end": lambda port: streamed(port, b"GET /", b"a" * 65536),
    "pipelined requests": lambda port: streamed(
        port, b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
    ),
    "a chunked body without an end": lambda port: streamed(
        port, CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"
    ),
    "tiny chunks": lambda port: streamed(port, CHUNKED, b"1\r\n \r\n" * 8192),
    "trailers without an end": lambda port: streamed(port, CHUNKED + b"0\r\n", b"a: b\r\n" * 8192),
    "no HTTP": lambda port: streamed(port, b"", b"\x16\x03\x01\x00" * 8192),
    "answers that nobody reads": unread,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_neighbour_is_answered_in_time_under(attack: str, ledger: LedgerProcess) -> None:
    with ATTACKS[attack](ledger.port):
        longest = neighbour(ledger.port)
    assert longest < LIMIT_SECONDS


def bad(method: str, path: str, *lines: str, body: bytes = b"") -> bytes:
    head = [
        f"{method} {path} HTTP/1.1",
        *lines,
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


LOCAL, AS_READER = "Host: localhost", f"Authorization: Bearer {READER}"
TYPED = (LOCAL, f"Authorization: Bearer {WRITER}", "Content-Type: application/json")
REFUSED: dict[str, tuple[bytes, int, str]] = {
    "no content type": (bad("POST", "/api/events", *TYPED[:2]), 415, "send application/json"),
    "the type of a form": (
        bad("POST", "/api/events", *TYPED[:2], "Content-Type: text/plain"),
        415,
        "Content-Type 'text/plain' is not taken",
    ),
    "a compressed body": (
        bad("POST", "/api/events", *TYPED, "Content-Encoding: gzip", body=b"\x1f\x8b"),
        415,
        "a compressed body is not taken",
    ),
    "a foreign origin": (
        bad("POST", "/api/events", *TYPED, "Origin: https://evil.example", body=delivery([])),
        403,
        "origin 'https://evil.example' is not this ledger",
    ),
    "the origin null": (
        bad("GET", "/api/jobs", LOCAL, AS_READER, "Origin: null"),
        403,
        "origin 'null'",
    ),
    "a foreign host": (
        bad("GET", "/api/jobs", "Host: evil.example:9450", AS_READER),
        403,
        "host 'evil.example:9450' is not this ledger's",
    ),
    "two hosts": (bad("GET", "/metrics", LOCAL, "Host: evil.example", AS_READER), 403, "host"),
    "no host": (bad("GET", "/metrics", AS_READER), 403, "host '' is not this ledger's"),
    "10,000 parameters": (
        bad("GET", "/api/jobs?" + "&".join(f"a{n}=b" for n in range(10_000)), LOCAL, AS_READER),
        400,
        "",
    ),
    "3,000 parameters": (
        bad("GET", "/api/jobs?" + "a&" * 3_000 + "a=b", LOCAL, AS_READER),
        400,
        "parameter 'a' is unknown",
    ),
    "a path with control characters": (
        bad("GET", "/api/jobs/%0Alevel=INFO%20forged%1b[2J%00", LOCAL, AS_READER),
        404,
        "Not Found",
    ),
    "a path that is no UTF-8": (bad("GET", "/api/jobs/%ff%fe", LOCAL, AS_READER), 404, ""),
    "a job of too long a name": (bad("GET", "/api/jobs/" + "a" * 7000, LOCAL, AS_READER), 404, ""),
    "a reader that writes": (
        bad("POST", "/api/events", LOCAL, AS_READER, TYPED[2], body=delivery([])),
        401,
        "not a writer's",
    ),
    "deep JSON": (bad("POST", "/api/events", *TYPED, body=b"[" * 90_000), 400, "no JSON"),
    "a deep event": (
        bad(
            "POST", "/api/events", *TYPED,
            body=b'{"version":1,"events":[' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"]}",
        ),
        422,
        "",
    ),
    "a body that is no UTF-8": (
        bad("POST", "/api/events", *TYPED, body=b'{"version":1,"node":"\xff"}'), 400, "no JSON"
    ),
    "a surrogate": (
        bad("POST", "/api/events", *TYPED, body=b'{"version":1,"node":"\\ud800","events":[]}'),
        400,
        "node",
    ),
    "an integer of 5,000 digits": (
        bad("POST", "/api/events", *TYPED, body=b'{"version":' + b"9" * 5000 + b"}"), 400, "JSON"
    ),
    "an integer of 400 digits": (
        bad("POST", "/api/events", *TYPED, body=b'{"version":' + b"9" * 400 + b"}"), 400, ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("request_name", REFUSED)
def test_a_hostile_request_is_refused_in_one_sentence(
    request_name: str, ledger: LedgerProcess
) -> None:
    request, status, sentence = REFUSED[request_name]
    answer = send(ledger.port, request)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, answer[:300]
    assert sentence in body.decode()
    assert b"\n" not in body.rstrip()


def send(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as one:
        one.sendall(request)
        answer = bytearray()
        while part := one.recv(65536):
            answer += part
    return bytes(answer)


def test_its_own_names_and_pages_are_admitted(ledger: LedgerProcess) -> None:
    port = ledger.port
    reader = f"Bearer {READER}"
    for host in (f"127.0.0.1:{port}", f"LOCALHOST:{port}", "[::1]", "ledger.example.", "10.1.2.3"):
        status, _ = ask(port, "GET", "/api/jobs", Host=host, Authorization=reader)
        assert status == 200, host
    own = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
    assert ask(port, "GET", "/api/jobs", Authorization=reader, **own)[0] == 200
    assert ask(port, "GET", "/healthz", Host="balancer.example")[0] == 200


def test_every_answer_has_the_headers_that_keep_other_pages_out(ledger: LedgerProcess) -> None:
    for path in ("/", "/api/jobs", "/healthz", "/none"):
        head = send(ledger.port, bad("GET", path, LOCAL, AS_READER)).partition(b"\r\n\r\n")[0]
        lines = head.decode().lower().split("\r\n")
        for line in (
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ):
            assert line in lines
        assert any("frame-ancestors 'none'" in line for line in lines)


def test_no_path_forges_a_line_of_the_log(ledger: LedgerProcess) -> None:
    send(ledger.port, bad("GET", "/%0Alockstep%20ledger:%20forged%1b[31m", LOCAL, AS_READER))
    deadline = time.monotonic() + 10
    while not any("forged" in line for line in ledger.lines):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [line] = [line for line in ledger.lines if "forged" in line]
    assert line.startswith("lockstep ledger: level=INFO method=GET path='/\\nlockstep")
    assert "\x1b" not in line


def test_a_stranger_that_asks_too_often_does_not_use_up_the_rate_of_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "readers"
    tokens.write_text(READER, encoding="ascii")
    options = ("--reader-tokens", str(tokens), "--max-rate", "1")
    with ledger_process(tmp_path / "ledger.db", *options) as process:
        statuses = [ask(process.port, "GET", "/metrics")[0] for _ in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        reader = f"Bearer {READER}"
        assert ask(process.port, "GET", "/metrics", Authorization=reader)[0] == 200
        assert ask(process.port, "GET", "/healthz")[0] == 200


def test_connections_that_never_shake_hands_keep_nobody_out(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    with (
        ledger_process(tmp_path / "ledger.db", *options) as process,
        connected(process.port, 2005),
    ):
        begin = time.perf_counter()
        client = http.client.HTTPSConnection("127.0.0.1", process.port, timeout=10, context=context)
        with closing(client):
            client.request("GET", "/healthz")
            assert client.getresponse().status == 200
        assert time.perf_counter() - begin < LIMIT_SECONDS


class Pair:
    """Connections with a clock of their own, and the sockets that were closed."""

    def __init__(self, max_open: int) -> None:
        self.now = 0.0
        self.all = Connections(max_open, clock=lambda: self.now)
        self.closed: list[str] = []

    def open(self, name: str, client: str = "a") -> Connection:
        with socket.socket() as unused:
            connection = self.all.add(client, unused)
        assert connection is not None
        connection.close = lambda: self.closed.append(name)
        return connection


def test_the_connection_that_has_been_idle_for_longest_is_closed_first() -> None:
    pair = Pair(3)
    first, second, _third = (pair.open(name, name) for name in ("1", "2", "3"))
    pair.all.set_busy(first)
    pair.all.set_busy(second)
    pair.all.set_idle(second, 0)
    assert pair.open("fourth", "d")
    assert len(pair.all) == 3
    assert pair.open("fifth", "e")
    # The first is being answered.
    assert pair.closed == ["3", "2"]
    for connection in list(pair.all._idle):
        pair.all.set_busy(connection)
    with socket.socket() as unused:
        assert pair.all.add("f", unused) is None


def test_one_address_loses_its_own_connections_first() -> None:
    pair = Pair(10_000)
    pair.open("other", "b")
    for number in range(MAX_OF_A_CLIENT + 2):
        pair.open(str(number))
    assert pair.closed == ["0", "1"]
    assert len(pair.all) == MAX_OF_A_CLIENT + 1


@pytest.mark.parametrize("seconds", [HEAD_SECONDS, BODY_SECONDS, ANSWER_SECONDS])
def test_a_connection_is_closed_at_its_deadline(seconds: float) -> None:
    pair = Pair(10)
    connection = pair.open("a")
    pair.all.grant_seconds(connection, seconds)
    pair.now = seconds - 0.1
    pair.all.close_overdue()
    assert pair.closed == []
    pair.now = seconds
    pair.all.close_overdue()
    assert (pair.closed, len(pair.all)) == (["a"], 0)


def test_only_a_few_long_answers_may_wait_for_their_reader() -> None:
    pair = Pair(100)
    for number in range(20):
        pair.all.set_idle(pair.open(str(number), f"c{number}"), 1 << 20)
    assert pair.closed == ["0", "1", "2", "3"]


def test_a_request_that_stops_in_its_head_is_closed_by_the_service(ledger: LedgerProcess) -> None:
    with socket.create_connection(("127.0.0.1", ledger.port), HEAD_SECONDS + 5) as one:
        one.sendall(HEAD)
        begin = time.monotonic()
        assert one.recv(1) == b""
        assert time.monotonic() - begin > HEAD_SECONDS - 1


def test_the_answer_is_json_that_names_the_refusal(ledger: LedgerProcess) -> None:
    status, body = ask(ledger.port, "GET", "/api/jobs")
    assert (status, list(json.loads(body))) == (401, ["error"])
