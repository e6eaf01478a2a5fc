"""Hostile requests to the running service: each is refused in one sentence."""

from collections.abc import Iterator

import pytest
from servers import wait_until

from ..service import LedgerProcess
from ..stories import delivery
from .guarded import READER, WRITER, ask, guarded_ledger, send

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", name="ledger")
def _ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerProcess]:
    with guarded_ledger(tmp_path_factory.mktemp("ledger")) as process:
        yield process


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
        "origin 'https://evil.example' is not this server",
    ),
    "the origin null": (
        bad("GET", "/api/jobs", LOCAL, AS_READER, "Origin: null"),
        403,
        "origin 'null'",
    ),
    "a foreign host": (
        bad("GET", "/api/jobs", "Host: evil.example:9450", AS_READER),
        403,
        "host 'evil.example:9450' is not this server's",
    ),
    "two hosts": (bad("GET", "/metrics", LOCAL, "Host: evil.example", AS_READER), 403, "host"),
    "no host": (bad("GET", "/metrics", AS_READER), 403, "host '' is not this server's"),
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
    "a deep event": (
        bad(
            "POST", "/api/events", *TYPED,
            body=b'{"version":1,"events":[' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"]}",
        ),
        422,
        "",
    ),
    "a body that is no UTF-8": (
        bad("POST", "/api/events", *TYPED, body=b'{"version":1,"node":"\xff"}'), 400, "is not JSON"
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
def test_a_hostile_request_is_refused_in_words(request_name: str, ledger: LedgerProcess) -> None:
    request, status, sentence = REFUSED[request_name]
    answer = send(ledger.port, request)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, answer[:300]
    assert sentence in body.decode()
    assert b"\n" not in body.rstrip()


def test_its_own_names_and_pages_are_admitted(ledger: LedgerProcess) -> None:
    port = ledger.port
    reader = f"Bearer {READER}"
    for host in (f"127.0.0.1:{port}", f"LOCALHOST:{port}", "[::1]", "ledger.example.", "10.1.2.3"):
        status, _ = ask(port, "GET", "/api/jobs", Host=host, Authorization=reader)
        assert status == 200, host
    host, origin = f"localhost:{port}", f"http://localhost:{port}"
    answer = ask(port, "GET", "/api/jobs", Authorization=reader, Host=host, Origin=origin)
    assert answer[0] == 200
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
    send(ledger.port, bad("GET", "/%0Alockstep%20ledger:%20invented%1b[31m", LOCAL, AS_READER))
    [line] = wait_until(lambda: [line for line in ledger.lines if "invented" in line], 10)
    assert line.startswith("lockstep ledger: level=INFO method=GET path='/\\nlockstep")
    assert "\x1b" not in line
