"""Ledgers that answer oddly: a token goes to no other, and a sender waits for none for ever."""

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lockstep_records.delivery import sender as sending
from lockstep_records.delivery.sender import LedgerAddress, post


class _Answers(BaseHTTPRequestHandler):
    server: "OddLedger"

    def do_POST(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.server.tokens.append(self.headers.get("Authorization", ""))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.answer(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        pass


class OddLedger(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.tokens: list[str] = []
        self.answer: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/events"


@pytest.fixture(name="odd")
def _odd() -> Iterator[OddLedger]:
    with OddLedger() as ledger:
        thread = threading.Thread(target=ledger.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield ledger
        ledger.shutdown()
        thread.join()


@pytest.mark.server
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_token_follows_a_redirect(odd: OddLedger, tmp_path: Path, status: int) -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Location", odd.url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    odd.answer = redirect
    (tmp_path / "token").write_text("secret-token-of-a-test")
    address = LedgerAddress(url=odd.url, token_file=tmp_path / "token")
    assert post(address, b"{}").status == status
    assert odd.tokens == ["Bearer secret-token-of-a-test"]


@pytest.mark.server
@pytest.mark.parametrize("is_in_head", [True, False])
def test_an_answer_that_drips_ends_at_the_deadline(
    odd: OddLedger, monkeypatch: pytest.MonkeyPatch, is_in_head: bool
) -> None:
    monkeypatch.setattr(sending, "_DEADLINE_SECONDS", 0.5)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"" if is_in_head else b"\r\n"))
        for _ in range(300):
            try:
                handler.wfile.write(b"x: y\r\n" if is_in_head else b"x")
            except OSError:
                return
            time.sleep(0.1)

    odd.answer = drip
    begin = time.monotonic()
    with contextlib.suppress(OSError):
        assert post(LedgerAddress(url=odd.url), b"{}").status == 200
    assert time.monotonic() - begin < 5


@pytest.mark.server
def test_an_answer_that_is_no_http_is_an_error_of_the_system(odd: OddLedger) -> None:
    odd.answer = lambda handler: handler.wfile.write(b"\x00" * 100_000)
    with pytest.raises(OSError, match="no answer of HTTP"):
        post(LedgerAddress(url=odd.url), b"{}")
