"""What was refused is kept whole and can be delivered again; an old store is brought up to date."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import func, select, update

from lockstep_ledger.command import ledger
from lockstep_ledger.ingest.document import DeliveryError, read_delivery
from lockstep_ledger.ingest.speakers import Speaker
from lockstep_ledger.store.tables import dead_letters, jobs
from lockstep_ledger.store.transaction import Submission
from lockstep_records.delivery.exchange import Answer
from lockstep_records.delivery.sender import LedgerAddress, Sender
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.events.event import Event

from ..model.stored import differences
from ..stories import BEGIN, Story, checked, delivery
from .open_writer import NOW, opened


def test_a_letter_holds_the_whole_event_and_is_delivered_again(tmp_path: Path) -> None:
    store = str(tmp_path / "ledger.db")
    story = Story().start(num_nodes=1).after(60)
    story.end("failed", reason="x" * 4000, exception="y" * 4000)
    with opened(store) as writer:
        taken = [replace(event, owner=7) for event in checked(story)]
        writer.write([Submission(taken[:1])])
        # Somebody else was first under this id, as an operator finds out, who corrects it.
        with writer._engine.begin() as connection:
            facts = connection.execute(select(jobs.c.facts)).scalar_one()
            other = facts.replace('"owner":7', '"owner":8')
            connection.execute(update(jobs).values(facts=other, owner=8))
    with opened(store) as writer:
        refused = Submission(taken[3:])
        writer.write([refused])
        assert [letter.refusal for letter in refused.refused] == ["owner"]
        with writer._engine.begin() as connection:
            body = connection.execute(select(dead_letters.c.body)).scalar_one()
            assert json.loads(body)["fields"] == story.events[3]["fields"]
            connection.execute(update(jobs).values(facts=facts, owner=7))
    result = CliRunner().invoke(ledger, ["replay", "--store", store, "--refusal", "owner"])
    assert (result.exit_code, "stored" in result.output) == (0, True), result.output
    with opened(store) as writer, writer._engine.connect() as connection:
        assert connection.execute(select(dead_letters)).all() == []
        assert connection.execute(select(jobs.c.outcome)).scalar_one() == "failed"
        assert differences(writer._engine) == []


def test_a_letter_that_is_delivered_again_has_the_speaker_that_it_had(tmp_path: Path) -> None:
    store = str(tmp_path / "ledger.db")
    thief = Speaker(scope="launcher", cluster="east", node="n1", uid=8)
    now = time.time()
    story = Story().start(num_nodes=1).events[0]
    end = {**story, "id": "end", "kind": "job_finished", "owner": 7, "time": now + 9000,
           "fields": {"outcome": "cancelled"}}  # fmt: skip
    statements = [end, {**end, "id": "gone", "kind": "job_preempted", "time": now, "fields": {}}]
    with opened(store) as writer:
        writer.write([Submission([replace(checked(Story().start(num_nodes=1))[0], owner=7)])])
        read = read_delivery(delivery(statements, node="n1"), now, lambda *_: thief)
        writer.write([Submission(read.events, list(read.refused), "", read.speaker)])
        assert [letter.refusal for letter in read.refused] == ["future", "scope"]
        with writer._engine.begin() as connection:  # as if it were a day later
            past = func.replace(dead_letters.c.body, str(end["time"]), str(now - 9))
            connection.execute(update(dead_letters).values(body=past))
    result = CliRunner().invoke(ledger, ["replay", "--store", store])
    assert (result.exit_code, "is of user 7" in result.output) == (0, True), result.output
    with opened(store) as writer, writer._engine.connect() as connection:
        assert len(connection.execute(select(dead_letters)).all()) >= len(statements)
        assert connection.execute(select(jobs.c.status)).scalar_one() != "finished"


def test_what_is_refused_again_stays(tmp_path: Path) -> None:
    store = str(tmp_path / "ledger.db")
    bad = {**Story().start().events[0], "time": NOW + 10**9}
    with opened(store) as writer:
        read = read_delivery(delivery([bad], node="n1"), NOW)
        writer.write([Submission(list(read.events), list(read.refused))])
    result = CliRunner().invoke(ledger, ["replay", "--store", store, "--id", bad["id"]])
    assert "in the future" in result.output
    with opened(store) as writer, writer._engine.connect() as connection:
        assert len(connection.execute(select(dead_letters)).all()) == 1


def test_a_node_keeps_what_the_ledger_refused_until_it_is_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "spool.sqlite"
    spool = EventSpool(tmp_path, path)
    spool.add([Event(kind="job_finished", job_id="j", attempt=0, id=f"e{n}") for n in range(3)])
    sent: list[Any] = []
    answers = iter([{"rejected": [{"id": "e1", "reason": "no"}]}, {"rejected": []}])

    def send(_address: LedgerAddress, body: bytes) -> Answer:
        sent.append(json.loads(body))
        return Answer(200, json.dumps(next(answers)).encode())

    sender = Sender(spool, LedgerAddress(url="x"), ("east", "n1"), send, wall_clock=lambda: 5.0)
    assert sender.run_once()
    assert (sender.delivered, sender.refused, spool.num_pending) == (2, 1, 0)
    result = CliRunner().invoke(ledger, ["replay", "--spool", str(path)])
    assert "1 events" in result.output
    assert sender.run_once()
    assert [[event["id"] for event in body["events"]] for body in sent] == [["e0", "e1", "e2"],
                                                                          ["e1"]]  # fmt: skip
    assert sent[0]["sent"] == 5.0
    spool.close()


@pytest.mark.parametrize(("offset", "is_corrected"), [(-3600, True), (1.5, False), (40, True)])
def test_a_wrong_clock_is_corrected_at_the_door(offset: float, is_corrected: bool) -> None:
    events = Story(now=BEGIN + offset).add("job_started").events
    message = {**json.loads(delivery(events, node="n1")), "sent": BEGIN + offset + 1}
    [event] = read_delivery(json.dumps(message).encode(), BEGIN + 1).events
    assert event.time == BEGIN + (0 if is_corrected else offset)
    assert event.extra == ({"node_time": BEGIN + offset} if is_corrected else {})


def test_a_time_of_sending_that_is_none_is_refused_in_a_sentence() -> None:
    message = {**json.loads(delivery([])), "sent": "now"}
    with pytest.raises(DeliveryError, match="sent 'now' must be the time of sending"):
        read_delivery(json.dumps(message).encode(), BEGIN)
