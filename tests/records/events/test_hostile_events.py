"""Files of events that another user wrote: they cost their own job only, and speak for no other."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import Evidence, NodeEvent
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.events.event import FILE_NAME, Event, append_event, parse_lines, read_events
from lockstep_records.files.jobs import job_folder

STRANGER = 4711


def event(job_id: str, number: int = 0, kind: str = "checkpoint_durable", **fields: Any) -> Event:
    fields = {"step": number} | fields
    return Event(kind=kind, job_id=job_id, attempt=0, id=f"{job_id}-{number}", fields=fields)


def file_of(root: Path, job_id: str) -> Path:
    folder = job_folder(root, job_id)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / FILE_NAME


def documents(spool: EventSpool) -> list[dict[str, Any]]:
    return [json.loads(waiting.text) for waiting in spool.next_batch(1_000_000, 1 << 40)]


def flood(root: Path, job_id: str, count: int, **fields: Any) -> None:
    lines = [json.dumps(event(job_id, number, **fields).document()) for number in range(count)]
    file_of(root, job_id).write_text("\n".join(lines) + "\n")


@settings(max_examples=50, deadline=None)
@given(
    data=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8", "replace"))
)
def test_no_line_of_any_bytes_ends_its_reader(data: bytes) -> None:
    for line in (data, b'{"kind":' + data + b"}", b'{"id":"a","fields":' + data + b"}"):
        parse_lines([line.decode(errors="replace")])


@pytest.mark.parametrize(
    "change",
    [
        '"fields":{"step":1e999}',
        '"fields":{"step":' + "9" * 400 + "}",
        '"fields":{"step":9007199254740993}',
        '"fields":{"reason":"\\ud800"}',
        '"fields":{"reason":"\\u001b[2J"}',
        '"fields":{"x":NaN}',
        '"fields":{"x":' + "[" * 20 + "]" * 20 + "}",
        '"fields":{"x":"' + "a" * 5000 + '"}',
        '"fields":{},"x":[' + "0," * 30_000 + "0]",
        '"fields":{},"kind":"ledger_settled"',
        '"fields":{},"time":1e18',
        '"fields":{},"attempt":2147483648',
        '"fields":{},"owner":-1',
        '"fields":{},"node":"a\\nb"',
    ],
)
def test_a_line_beyond_a_bound_is_left_out(tmp_path: Path, change: str) -> None:
    line = '{"kind":"of_the_future","job_id":"j","attempt":0,"time":1,"id":"a",' + change + "}"
    (tmp_path / FILE_NAME).write_text(line + "\n")
    append_event(tmp_path, event("j"))
    assert [found.id for found in read_events(tmp_path)] == ["j-0"]


def test_what_a_writer_appends_every_reader_takes(tmp_path: Path) -> None:
    reason = "\ud800\x1b[31mred\x00" + "x" * 9000
    fields = {"reason": reason, "outcome": "failed", "last_step": 2**70, "x": float("inf")}
    append_event(tmp_path, Event(kind="job_finished", job_id="j", attempt=0, fields=fields))
    [found] = read_events(tmp_path)
    assert found.fields["reason"].startswith(r"\ud800\x1b[31mred\x00xxx")
    assert (len(found.fields["reason"]), found.fields["last_step"], found.fields["x"]) == (
        4096, None, None,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["link", "hard_link", "fifo", "folder"])
def test_only_a_file_of_its_own_is_appended_to_and_read(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text(json.dumps(event("j").document()) + "\n")
    path = file_of(tmp_path, "j")
    make: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(victim),
        "hard_link": lambda: path.hardlink_to(victim),
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }
    make[kind]()
    before = victim.read_bytes()
    with pytest.raises(OSError, match=r"events\.jsonl|No such device"):
        append_event(path.parent, event("j"))
    assert victim.read_bytes() == before
    assert read_events(path.parent) == []
    spool = EventSpool(tmp_path, None)
    spool.refresh()
    assert spool.num_pending == 0


def test_a_spool_stamps_the_owner_and_takes_neither_cluster_nor_node_from_a_line(
    tmp_path: Path,
) -> None:
    forged = event("mine").document() | {"owner": 0, "node": "other", "cluster": "west", "x": 1}
    path = file_of(tmp_path, "mine")
    path.write_text(json.dumps(forged) + "\n")
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1)
        os.chown(path.parent, STRANGER, -1)
    owner = path.parent.stat().st_uid
    spool = EventSpool(tmp_path, None)
    spool.refresh()
    [document] = documents(spool)
    assert document["owner"] == owner
    assert document["x"] == 1
    assert not {"node", "cluster"} & set(document)
    spool.add([event("mine", 2), event("nobody", 3)])
    assert [d.get("owner") for d in documents(spool)] == [None, owner, owner], "users by turns"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_than_its_folder_is_not_read(tmp_path: Path) -> None:
    path = file_of(tmp_path, "mine")
    append_event(path.parent, event("mine"))
    os.chown(path, STRANGER, -1)
    spool = EventSpool(tmp_path, None)
    spool.refresh()
    assert spool.num_pending == 0
    assert read_events(path.parent) == []


def test_lines_of_another_job_are_refused_counted_and_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    caplog.set_level(logging.WARNING)
    spool = EventSpool(tmp_path, None, clock=lambda: now[0])
    append_event(file_of(tmp_path, "evil").parent, event("evil"))
    for number in range(5):
        append_event(file_of(tmp_path, "evil").parent, event("victim", number, "job_finished"))
    own = json.dumps(event("evil", 9).document() | {"kind": "ledger_settled"})
    with file_of(tmp_path, "evil").open("a") as file:
        file.write(own + "\nno event\n")
    spool.refresh()
    assert [d["job_id"] for d in documents(spool)] == ["evil"]
    assert spool.refused == 7
    [record] = caplog.records
    assert "job=evil" in record.getMessage()
    assert f"owner={os.getuid()} file=events.jsonl" in record.getMessage()
    assert "job_id 'victim' must be 'evil', the folder of the file" in record.getMessage()
    now[0] = 61.0
    append_event(file_of(tmp_path, "evil").parent, event("victim", 6))
    spool.refresh()
    assert len(caplog.records) == 2


def test_a_job_that_floods_the_spool_loses_its_own_events_first(tmp_path: Path) -> None:
    for number in range(20):
        append_event(file_of(tmp_path, "quiet").parent, event("quiet", number))
    flood(tmp_path, "flood", 8000)
    spool = EventSpool(tmp_path, tmp_path / "s.sqlite", max_bytes=200_000)
    for _ in range(40):
        spool.refresh()
    held = [d["id"] for d in documents(spool)]
    assert [each for each in held if each.startswith("quiet")] == [f"quiet-{n}" for n in range(20)]
    assert held[-1] == "flood-7999"
    assert spool.dropped == 8020 - spool.num_pending > 5000
    spool.close()
    spool = EventSpool(tmp_path, tmp_path / "s.sqlite", max_bytes=20_000)
    spool.add([event("quiet", 20)])
    held = [d["id"] for d in documents(spool)]
    assert [each for each in held if each.startswith("quiet")] == [f"quiet-{n}" for n in range(21)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of two users")
def test_a_user_with_many_jobs_loses_before_a_user_with_one_larger_job(tmp_path: Path) -> None:
    flood(tmp_path, "large", 400)
    for number in range(40):
        name = f"many-{number}"
        flood(tmp_path, name, 40)
        for path in (file_of(tmp_path, name), job_folder(tmp_path, name)):
            os.chown(path, STRANGER, -1)
    spool = EventSpool(tmp_path, None, max_bytes=300_000)
    for _ in range(5):
        spool.refresh()
    assert len([d for d in documents(spool) if d["job_id"] == "large"]) == 400


def test_at_a_call_little_of_each_job_is_read_and_in_the_end_all_of_it(tmp_path: Path) -> None:
    for number in range(5):
        flood(tmp_path, f"job-{number}", 2000)
    append_event(file_of(tmp_path, "z-last").parent, event("z-last"))
    spool = EventSpool(tmp_path, None)
    spool.refresh()
    assert spool.num_pending < 3000
    seen = 1
    while spool.num_pending < 10_001 and seen < 50:
        spool.refresh()
        seen += 1
        if seen == 4:
            assert "z-last" in {d["job_id"] for d in documents(spool)}
    assert spool.num_pending == 10_001
    ids = [d["id"] for d in documents(spool) if d["job_id"] == "job-3"]
    assert ids == [f"job-3-{n}" for n in range(2000)]


@pytest.mark.parametrize("detail", ["", " ", "Xid²", "Xid" + "9" * 5000, "\n\n", "Xid13 x"])
def test_any_detail_of_a_node_event_is_judged(detail: str) -> None:
    events = (NodeEvent(sign="xid", detail=detail),)
    assert classify(Evidence(node_events=events)).outcome in {"failed", "unknown", "succeeded"}
