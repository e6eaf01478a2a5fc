"""The dry run and the canary, against a real Alertmanager, Prometheus, ledger and agent."""

import json
import os
import re
import signal
import time
from base64 import b64encode
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from servers import serving

from lockstep.commands.canary import canary
from lockstep_cli.gameday import stage as stage_module
from lockstep_cli.gameday.command import gameday
from lockstep_cli.gameday.stage import Stage
from lockstep_cli.small_server import free_port
from lockstep_records.delivery import exchange


def quicken(stack: Path) -> None:
    """Evaluates the slow groups of a stack at an interval in which Alertmanager is discovered."""
    for path in stack.rglob("*.rules.yaml"):
        path.write_text(re.sub(r"(?m)^(\s+interval:) \d+s$", r"\1 10s", path.read_text()))
    state = json.loads((stack / "stack.json").read_text(encoding="utf-8"))
    os.kill(state["prometheus"]["pid"], signal.SIGHUP)


@pytest.mark.server
@pytest.mark.timeout(300)
def test_the_dry_run_proves_routes_ledger_and_canary_and_notifies_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "INTERVAL_SECONDS", 1)
    with Stage(tmp_path, []) as stage:
        quicken(tmp_path / "stack")
        address, pages = f"127.0.0.1:{free_port()}", stage.memory / "pages"
        pages.mkdir()
        words = ("--listen", address, "--dir", str(pages), "--state", str(stage.memory / "state"))
        stage.start("agent", "agent", *words, "--scrape-interval", "1s")
        stage.target(address)
        options = [
            *("--against", stage.url("alertmanager"), "--prometheus", stage.url("prometheus")),
            *("--ledger", stage.ledger, "--dir", str(pages)),
        ]
        done = CliRunner().invoke(gameday, options, standalone_mode=False)
        assert done.return_value == 0, done.output
        steps = {line[10:34].strip(): line[:10].strip() for line in done.stdout.splitlines()}
        assert steps.pop("receivers") == "not tried"
        assert set(steps.values()) == {"ok"}, done.output
        assert {"watchdog", "route of page", "clean up", "ledger", "canary"} <= steps.keys()
        assert not stage.all_notifications()
        assert not list((pages / "jobs").iterdir())


DRIPS = b" "
FOREIGN = "answers, but is no Alertmanager"
ANSWERS = [
    (401, b"<html>", "answers with status 401; check user and password, or the token"),
    (302, b"", "answers with status 302"),
    (200, b"<html>", FOREIGN),
    (200, b"null", FOREIGN),
    (200, b'[1, {"labels": 3}]', FOREIGN),
    (200, b'{"hello": [1, 2]}', FOREIGN),
    (200, b"[" * 2_000_000, FOREIGN),
    (200, b" " * (17 << 20), "answers with more than 16,777,216 bytes"),
    (200, DRIPS, "does not answer: no whole answer within 0.5 s"),
]
OLD = {"labels": {"alertname": "TrainCanary", "job_id": "old"}, "receivers": [{"name": "watchdog"}]}


class Foreign(ThreadingHTTPServer):
    """Answers everything alike, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Foreign)
        self.status, self.body = status, body
        self.requests = set[tuple[str, str | None]]()


class _Foreign(BaseHTTPRequestHandler):
    server: Foreign

    def do_GET(self) -> None:
        self.server.requests.add((self.command, self.headers["Authorization"]))
        self.send_response(self.server.status)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(self.server.body)
            while self.server.body == DRIPS:
                time.sleep(0.05)
                self.wfile.write(DRIPS)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name it overrides
        pass


def ask(command: click.Command, body: bytes, status: int, *words: str) -> tuple[str, Foreign]:
    """What the command says of such a server without the server's address, and the server."""
    with serving(Foreign(status, body)) as server:
        address = f"127.0.0.1:{server.server_port}"
        done = CliRunner().invoke(
            command, [*words, f"http://user:secret@{address}/"], standalone_mode=False
        )
    assert done.return_value == 1, done.exception
    assert "secret" not in done.output
    assert {auth for _, auth in server.requests} == {f"Basic {b64encode(b'user:secret').decode()}"}
    return done.output.replace(f"http://{address} ", ""), server


@pytest.mark.parametrize(("status", "body", "sentence"), ANSWERS, ids=range(len(ANSWERS)))
def test_what_is_no_alertmanager_is_one_sentence_and_is_sent_nothing(
    status: int, body: bytes, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_DEADLINE_SECONDS", 0.5)
    output, server = ask(gameday, body, status, "--against")
    first, last = output.splitlines()
    assert first == f"{'FAIL':<10}{'alertmanager':<24}{sentence}"
    assert "nothing more was tried" in last
    assert {method for method, _ in server.requests} == {"GET"}


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [*ANSWERS[::4], (200, json.dumps([OLD]).encode(), "has had no TrainCanary for 2 s")],
    ids=["refused", "foreign", "drips", "of another canary"],
)
def test_a_canary_says_why_it_has_no_alert(
    status: int, body: bytes, sentence: str, monkeypatch: pytest.MonkeyPatch, memory: Path
) -> None:
    monkeypatch.setattr(exchange, "_DEADLINE_SECONDS", 0.5)
    output, _ = ask(canary, body, status, "--dir", str(memory), "--for", "2s", "--alertmanager")
    assert output.splitlines()[-1].partition(": ")[2] == sentence


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--against", ""], "'' is not an address of Alertmanager; give http://HOST:PORT"),
        (["--against", "ftp://user:secret@x"], "'x' is not an address of Alertmanager"),
        (["--against", "http://user:se/cret@x"], "'x' is not an address of Alertmanager"),
        (["--against", "http://x", "--ledger", ""], "'' is not an address of ledger"),
        (["--against", "http://x", "--only", "F2", "--soak", "1h"], "--only, --soak: not with"),
        (["--notify", "--prometheus", "http://x"], "--prometheus, --notify: not without --against"),
        (["--soak", "1h", "--pairs", "2"], "--pairs: not with --soak"),
    ],
)
def test_what_it_cannot_use_is_refused_before_a_start(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(gameday, words)
    assert done.exit_code == 2
    assert sentence in done.output
    assert "secret" not in done.output
