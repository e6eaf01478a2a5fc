"""The spool of events: bounded, durable, in order; the sender, odd ledgers, and who sends."""

import contextlib
import json
import random
import signal
import ssl
import subprocess
import sys
import textwrap
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from servers import Answered, FakeLedger

from lockstep_records.delivery import exchange
from lockstep_records.delivery import spool as spooling
from lockstep_records.delivery.duty import DeliveryDuty
from lockstep_records.delivery.exchange import Answer
from lockstep_records.delivery.sender import LedgerAddress, Sender, post
from lockstep_records.delivery.spool import EVENT_BYTES, SPOOL_BYTES, EventSpool
from lockstep_records.events.event import FILE_NAME, Event, append_event
from lockstep_records.events.kinds import EDGE_KINDS, EVENT_KINDS
from lockstep_records.files.jobs import job_folder

ADDRESS = LedgerAddress(url="http://ledger/")


def add_event(root: Path, number: int, kind: str = "attempt_started", **fields: Any) -> None:
    event = Event(
        kind=kind, job_id="job", attempt=0, id=f"e{number}", fields={"n": number} | fields
    )
    append_event(job_folder(root, "job"), event)


def ids(spool: EventSpool, count: int = 10_000) -> list[str]:
    return [json.loads(event.text)["id"] for event in spool.next_batch(count, 1 << 30)]


def test_a_full_spool_drops_the_oldest_and_keeps_starts_and_ends_longest(tmp_path: Path) -> None:
    for number in range(60):
        kind = "job_finished" if number % 3 == 0 else "checkpoint_durable"
        add_event(tmp_path, number, kind)
    size = len((job_folder(tmp_path, "job") / FILE_NAME).read_bytes())
    spool = EventSpool(tmp_path, tmp_path / "s.sqlite", max_bytes=size * 3 // 4)
    spool.refresh()
    assert spool.dropped == 60 - spool.num_pending > 0
    left = [int(event_id[1:]) for event_id in ids(spool)]
    assert [number for number in left if number % 3 == 0] == list(range(0, 60, 3))
    others = [number for number in left if number % 3]
    assert others == [number for number in range(60) if number % 3][-len(others) :]
    assert 0.5 < spool.fill_ratio <= 1

    for number in range(60, 160):
        add_event(tmp_path, number, "job_finished")
    spool.refresh()
    left = [int(event_id[1:]) for event_id in ids(spool)]
    assert left == list(range(160 - len(left), 160)), "of starts and ends the newest stay"


def full_event(kind: Any) -> Event:
    """An event as large as those of a job of 64 ranks a node: every field has a value."""
    examples: dict[str, Any] = {
        "text": "a reason of some sixty characters, as long as they are in life",
        "integer": 123_456_789, "number": 1795199112.25, "flag": True, "integers": [3, 17],
        "texts": ["node-0123"], "objects": [{"group": "pp=3", "ranks": 8, "seconds": 12345.678}],
        "object": {}, "numbers_by_name": dict.fromkeys(("productive", "idle", "hang"), 12345.678),
    }  # fmt: skip
    fields = {
        field.name: field.values[0]
        if field.values and field.shape == "text"
        else examples[field.shape]
        for field in kind.fields
    }
    return Event(kind=kind.name, job_id="20261120-184512-3fa9", attempt=3, fields=fields)


def test_a_day_without_a_ledger_at_a_thousand_events_an_hour_loses_nothing(tmp_path: Path) -> None:
    assert SPOOL_BYTES / (1000 * EVENT_BYTES) > 24 * 4
    spool = EventSpool(tmp_path, None)
    # Every field filled is more than any real event; the mean of the kinds is the claim.
    spool.add([full_event(kind) for kind in EVENT_KINDS])
    assert spool.fill_ratio * SPOOL_BYTES / len(EVENT_KINDS) < EVENT_BYTES * 1.6
    largest = max(len(json.dumps(full_event(kind).document())) for kind in EVENT_KINDS if kind.edge)
    assert 24 * 1000 * (largest + 100) < SPOOL_BYTES, "a day even of the largest starts and ends"
    hours, per_hour = 4, 1000
    spool = EventSpool(tmp_path, None, max_bytes=hours * per_hour * EVENT_BYTES)
    usual = {"step": 120_000, "size_bytes": 10**12, "seconds": 41.25, "verified": True}
    for _ in range(hours):
        spool.add(
            Event(kind="checkpoint_durable", job_id="20261120-184512-3fa9", attempt=3, fields=usual)
            for _ in range(per_hour)
        )
    assert (spool.num_pending, spool.dropped) == (hours * per_hour, 0)


def test_events_that_a_ledger_leaves_out_of_a_batch_are_counted_and_do_not_come_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        add_event(tmp_path, number)
    body = json.dumps({"rejected": [{"id": "e1", "reason": "attempt -1 must be from 0 on"}]})
    spool = EventSpool(tmp_path, None)
    sender = Sender(spool, ADDRESS, ("", ""), lambda *_: Answer(200, body.encode()))
    assert sender.run_once()
    assert (sender.delivered, sender.refused, spool.num_pending) == (2, 1, 0)
    assert "event=e1" in caplog.text
    assert "from 0 on" in caplog.text


@pytest.mark.parametrize("wrong", [{"e1"}, {"e0", "e3"}, {f"e{n}" for n in range(4)}])
def test_a_receiver_that_names_no_event_holds_up_none_but_those_that_it_refuses_alone(
    tmp_path: Path, wrong: set[str]
) -> None:
    for number in range(4):
        add_event(tmp_path, number)
    sent: list[str] = []

    def send(_: LedgerAddress, body: bytes) -> Answer:
        names = [event["id"] for event in json.loads(body)["events"]]
        sent.extend(names)
        return Answer(400 if wrong.intersection(names) else 200, b"no")

    spool = EventSpool(tmp_path, None)
    sender = Sender(spool, ADDRESS, ("", ""), send)
    assert sender.run_once() == (len(wrong) < 4)
    assert spool.num_pending == (4 if len(wrong) == 4 else 0)
    assert (sender.refused, len(sent)) == (len(wrong) % 4, 8)


@pytest.mark.parametrize("body", [b"", b"OK", b"[]", b'{"rejected":7}', b'{"rejected":[{}]}'])
def test_an_answer_of_any_text_counts_as_taken(tmp_path: Path, body: bytes) -> None:
    add_event(tmp_path, 0)
    sender = Sender(EventSpool(tmp_path, None), ADDRESS, ("", ""), lambda *_: Answer(200, body))
    assert sender.run_once()
    assert (sender.delivered, sender.refused) == (1, 0)


_KILLED = """
import sys
from pathlib import Path
from lockstep_records.delivery.spool import EventSpool
spool = EventSpool(Path(sys.argv[1]), Path(sys.argv[2]))
while True:
    spool.refresh()
    print(spool.num_pending, flush=True)
"""


def test_a_killed_process_loses_no_event_and_takes_none_twice(tmp_path: Path) -> None:
    chance = random.Random(3)
    path, number = tmp_path / "s.sqlite", 0
    for _ in range(6):
        command = [sys.executable, "-c", textwrap.dedent(_KILLED), str(tmp_path), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(40):
                add_event(tmp_path, number)
                number += 1
            process.stdout.readline()
            time.sleep(chance.random() * 0.05)
            process.send_signal(signal.SIGKILL)
    spool = EventSpool(tmp_path, path)
    spool.refresh()
    assert ids(spool) == [f"e{each}" for each in range(number)]


def test_users_take_turns_by_events_and_bytes_and_refused_ones_drop_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, users = EventSpool(tmp_path, None), {"flood": 1, "large": 2, "other": 3}
    monkeypatch.setattr(spooling, "_owner_of", lambda folder: users.get(folder.name))

    def fill(job: str, count: int, size: int = 0) -> None:
        spool.add(
            Event(kind="hang", job_id=job, attempt=0, id=f"{job}-{n}", fields={"why": "x" * size})
            for n in range(count)
        )

    fill("flood", 5000)
    fill("large", 500, 4000)
    fill("other", 30)
    batch = spool.next_batch(100, 512 << 10)
    jobs = [event.job for event in batch]
    assert jobs.count("other") == 30
    assert 60 <= jobs.count("flood") < 70
    own = [json.loads(event.text)["id"] for event in batch if event.job == "flood"]
    assert own == [f"flood-{number}" for number in range(len(own))]
    assert sum(event.size_bytes for event in spool.next_batch(9999, 100_000)) <= 100_000

    monkeypatch.setattr(spooling, "MAX_REFUSED_BYTES", 50_000)
    spool.remove(batch, {event.number: "bad" for event in batch})
    for _ in range(20):
        batch = spool.next_batch(100, 512 << 10)
        spool.remove(batch, {event.number: "bad" for event in batch})
    num_refused = spool._database.execute(
        "SELECT job, count(*) FROM refused GROUP BY job"
    ).fetchall()
    assert dict(num_refused)["other"] == 30


def test_what_no_ledger_takes_is_refused_on_the_node(tmp_path: Path) -> None:
    spool, odd = EventSpool(tmp_path, None), "\U0001f600" * 4000
    add_event(tmp_path, 0, why=odd, reason=odd)
    add_event(tmp_path, 1)
    path = job_folder(tmp_path, "job") / FILE_NAME
    late = {"id": "e2", "kind": "hang", "job_id": "job", "attempt": 0, "fields": {}}
    lines = [late | {"time": time.time() + 3600}, late | {"time": 1.0, "version": 2}]  # of a newer
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    spool.refresh()
    assert (ids(spool), spool.refused) == (["e1", "e2"], 2)


TOKEN = "right-token-of-a-test"  # noqa: S105  # of a test


def test_a_token_is_read_at_each_delivery_and_a_wrong_one_loses_nothing(
    tmp_path: Path, ledger: FakeLedger, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("wrong-token-of-a-test\n")
    add_event(tmp_path, 0)
    now = [0.0]
    spool = EventSpool(tmp_path, None)
    ledger.token = TOKEN
    address = LedgerAddress(url=ledger.url, token_file=token)
    sender = Sender(spool, address, ("", ""), clock=lambda: now[0])
    assert not sender.run_once()
    assert "status 401" in caplog.text
    assert "not one of a writer" in caplog.text
    token.write_text(f"{TOKEN}\n")
    now[0] += 61
    assert sender.run_once()
    assert spool.num_pending == 0
    token.write_text("two\nlines")
    add_event(tmp_path, 1)
    assert not sender.run_once()
    assert spool.num_pending == 1


def test_a_ledger_whose_certificate_is_of_another_authority_gets_nothing(
    tmp_path: Path, ledger: FakeLedger
) -> None:
    with pytest.raises(OSError, match="No such file"):
        post(LedgerAddress(url="https://127.0.0.1:1/", ca_file=tmp_path / "none.pem"), b"{}")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "1", "-subj", "/CN=ledger", "-keyout", str(key)]
    command += ["-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    ledger.socket = context.wrap_socket(ledger.socket, server_side=True)
    ledger.token = TOKEN
    url = ledger.url.replace("http:", "https:")
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        post(LedgerAddress(url=url), b"{}")
    (tmp_path / "token").write_text(TOKEN)
    address = LedgerAddress(url=url, ca_file=certificate, token_file=tmp_path / "token")
    assert post(address, b"{}").status == 200


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_token_follows_a_redirect(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    def redirect(request: BaseHTTPRequestHandler, _: bytes) -> Answered:
        ledger.tokens.append(request.headers["Authorization"])
        return status, b"", {"Location": ledger.url}

    monkeypatch.setattr(ledger, "answer", redirect)
    (tmp_path / "token").write_text(TOKEN)
    address = LedgerAddress(url=ledger.url, token_file=tmp_path / "token")
    assert post(address, b"{}").status == status
    assert ledger.tokens == [f"Bearer {TOKEN}"]


@pytest.mark.parametrize("begin", [b"", b"\r\n"], ids=["in its head", "in its body"])
def test_an_answer_that_drips_ends_at_the_deadline(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(exchange, "_DEADLINE_SECONDS", 0.5)

    def drip(handler: BaseHTTPRequestHandler, _text: bytes) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + begin)
        with contextlib.suppress(OSError):
            for _ in range(300):
                handler.wfile.write(b"x: y\r\n")
                time.sleep(0.1)

    monkeypatch.setattr(ledger, "answer", drip)
    asked_at = time.monotonic()
    with contextlib.suppress(OSError):
        assert post(LedgerAddress(url=ledger.url), b"{}").status == 200
    assert time.monotonic() - asked_at < 5


def test_an_answer_that_is_no_http_is_an_error_of_the_system(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ledger, "answer", lambda request, _: request.wfile.write(b"\x00" * 100_000) and None
    )
    with pytest.raises(OSError, match="no answer of HTTP"):
        post(LedgerAddress(url=ledger.url), b"{}")


def test_on_a_node_an_agent_delivers_else_one_launcher_of_a_user(tmp_path: Path) -> None:
    first, second = DeliveryDuty(tmp_path), DeliveryDuty(tmp_path)
    agent = DeliveryDuty(tmp_path, is_agent=True)
    assert first.take()
    assert not second.take()
    assert agent.take()
    assert not first.take(), "the agent has come"
    agent.release()
    assert first.take()
    first.release()
    assert second.take()


def test_where_no_lock_can_be_had_every_process_delivers(tmp_path: Path) -> None:
    duty = DeliveryDuty(tmp_path / "none" / "at all")
    assert duty.take()
    assert duty.take()


def test_the_spool_is_the_owners_alone_and_memory_serves_where_no_folder_can_be_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state" / "s.sqlite"
    EventSpool(tmp_path, path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").write_text("")
    spool = EventSpool(tmp_path, tmp_path / "file" / "s.sqlite")
    spool.add([Event(kind="goodput", job_id="job", attempt=0)])
    assert spool.num_pending == 1
    assert {"job_submitted", "job_finished"} <= EDGE_KINDS
