"""Events of a job: what is appended is read, and hostile lines harm nobody."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from writers.events import markdown_page, schema

from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import Evidence, NodeEvent
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.events.bounds import EventError
from lockstep_records.events.event import (
    FILE_NAME,
    MAX_FUTURE_SECONDS,
    Event,
    append_event,
    check_event,
    finish_time,
    is_finished,
    parse_line,
    parse_lines,
    read_events,
    stable_id,
)
from lockstep_records.events.kinds import EVENT_KINDS, KIND_BY_NAME, KINDS, EventField
from lockstep_records.files.jobs import job_folder

SOUND: dict[str, Any] = {
    "kind": "rank_ended",
    "job_id": "job-a",
    "attempt": 1,
    "fields": {"rank": 3, "signal": "SIGKILL"},
    "time": 1.5,
    "id": "e1",
}


def write_lines(job: Path, *lines: str | bytes) -> None:
    job.mkdir(exist_ok=True)
    data = [line.encode() if isinstance(line, str) else line for line in lines]
    (job / FILE_NAME).write_bytes(b"\n".join(data))


def sound(**fields: Any) -> str:
    return json.dumps({**SOUND, **fields})


def test_events_come_back_in_the_order_of_writing(tmp_path: Path) -> None:
    events = [Event(kind=kind, job_id="job-a", attempt=0, fields={"n": kind}) for kind in KINDS]
    for event in events:
        append_event(tmp_path / "job-a", event)
    assert read_events(tmp_path / "job-a") == events


def test_a_torn_last_line_is_left_out_and_takes_no_later_event_with_it(tmp_path: Path) -> None:
    write_lines(tmp_path, sound(id="whole"), sound(id="torn")[:-9])
    assert [event.id for event in read_events(tmp_path)] == ["whole"]
    append_event(tmp_path, Event(kind="job_finished", job_id="job-a", attempt=1, id="after"))
    assert [event.id for event in read_events(tmp_path)] == ["whole", "after"]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "7",
        '"text"',
        "[]",
        "{}",
        "{" * 100_000,
        "[" * 100_000,
        "\0\0\0",
        b"\xff\xfe\xfd",
        sound(kind="rm -rf"),
        sound(kind=None),
        sound(attempt="many"),
        sound(attempt=None),
        sound(attempt=[1]),
        sound(attempt=1.0).replace("1.0", "1e999"),
        sound(attempt=1).replace('"attempt": 1', '"attempt": ' + "1" * 10_000),
        sound(fields=None),
        sound(fields="text"),
        sound(fields=[1]),
        sound(time="noon"),
        json.dumps({name: value for name, value in SOUND.items() if name != "id"}),
    ],
)
def test_a_line_that_is_no_event_is_left_out_alone(tmp_path: Path, line: str | bytes) -> None:
    write_lines(tmp_path, sound(id="before"), line, sound(id="behind"))
    assert [event.id for event in read_events(tmp_path)] == ["before", "behind"]


def test_a_job_is_finished_when_its_launcher_says_so() -> None:
    events = [Event(kind=kind, job_id="job-a", attempt=0) for kind in KINDS]
    assert is_finished(events)
    assert not is_finished(events[:-1])


def test_a_requeue_after_the_end_makes_the_job_run_again() -> None:
    ended, again = (
        Event(kind=kind, job_id="job-a", attempt=0, time=moment)
        for kind, moment in (("job_finished", 5.0), ("job_started", 9.0))
    )
    assert finish_time([ended]) == 5.0
    assert finish_time([ended, again]) is None


DOCS = Path(__file__).parents[3] / "docs" / "formats"
NOW = 1_800_000_000.0
SOUND_EVENT: dict[str, Any] = {
    "version": 1, "id": "e1", "kind": "rank_ended", "job_id": "job-a", "attempt": 0,
    "time": NOW - 5, "node": "n1", "fields": {"rank": 3, "exit_code": -9, "signal": "SIGKILL"},
}  # fmt: skip
EXAMPLES = {
    "text": "some text", "integer": 7, "number": 1.5, "flag": True, "integers": [0, 3],
    "texts": ["a"], "objects": [{}], "object": {}, "numbers_by_name": {"productive": 2.0},
}  # fmt: skip


def example(spec: EventField) -> object:
    return spec.values[0] if spec.values and spec.shape == "text" else EXAMPLES[spec.shape]


def refusal(document: object) -> tuple[str, str]:
    with pytest.raises(EventError) as caught:
        check_event(document, now_seconds=NOW)
    return caught.value.refusal, str(caught.value)


def is_valid(document: object) -> bool:
    return not list(Draft202012Validator(schema()).iter_errors(document))


def test_the_published_page_is_that_of_the_table() -> None:
    assert (DOCS / "events.md").read_text() == markdown_page()
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("kind", EVENT_KINDS, ids=lambda kind: kind.name)
def test_an_event_with_every_field_of_its_kind_is_valid_and_so_is_the_shortest(kind: Any) -> None:
    every = {spec.name: example(spec) for spec in kind.fields}
    least = {spec.name: example(spec) for spec in kind.fields if spec.required}
    for fields in (every, least):
        event = Event(kind=kind.name, job_id="job-a", attempt=0, fields=fields, time=NOW)
        assert is_valid(event.document())
        assert check_event(event.document(), now_seconds=NOW) == event


def test_a_kind_of_a_newer_writer_is_kept_as_it_was_written(tmp_path: Path) -> None:
    document = SOUND_EVENT | {"kind": "gpu_swapped", "fields": {"slot": {"a": [1, None]}}}
    assert is_valid(document)
    event = check_event(document, now_seconds=NOW)
    assert event.document() == document
    with (tmp_path / "events.jsonl").open("w") as file:
        file.write(json.dumps(document) + "\n")
    append_event(tmp_path, Event(kind="job_finished", job_id="job-a", attempt=0))
    assert [event.kind for event in read_events(tmp_path)] == ["gpu_swapped", "job_finished"]


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"version": 2}, "version", "version 2 is unknown here; send 1"),
        ({"version": True}, "version", "True"),
        ({"id": ""}, "type", "id ''"),
        ({"job_id": "a b"}, "value", "job_id 'a b'"),
        ({"job_id": None}, "type", "job_id None"),
        ({"attempt": -1}, "type", "attempt -1"),
        ({"attempt": True}, "type", "attempt True"),
        ({"attempt": 10**5000}, "type", "30 digits"),
        ({"time": "noon"}, "type", "time 'noon'"),
        ({"time": float("nan")}, "type", "time nan"),
        ({"time": NOW + MAX_FUTURE_SECONDS + 60}, "future", "360 s in the future"),
        ({"fields": []}, "type", "fields []"),
        ({"kind": "Rank Ended"}, "type", "kind 'Rank Ended'"),
        ({"fields": {}}, "missing", "field 'rank' is missing in rank_ended"),
        ({"fields": {"rank": "3"}}, "type", "rank_ended.rank '3' must be a whole number"),
        ({"kind": "job_finished", "fields": {"outcome": "ok"}}, "value", "must be one of"),
        ({"kind": "job_finished", "fields": {"outcome": None}}, "type", "job_finished.outcome"),
        (
            {"kind": "goodput", "fields": {"rank_seconds": {"slow": 1}}},
            "value",
            "goodput.rank_seconds 'slow'",
        ),
        ({"kind": "goodput", "fields": {"rank_seconds": {"idle": -1}}}, "type", "from 0 on"),
    ],
)
def test_a_bad_event_is_refused_by_a_sentence_that_names_the_field(
    changes: dict[str, Any], reason: str, words: str
) -> None:
    refused, sentence = refusal(SOUND_EVENT | changes)
    assert refused == reason
    assert words in sentence


@pytest.mark.parametrize("name", ["id", "kind", "job_id", "attempt", "time", "fields"])
def test_a_missing_field_is_named(name: str) -> None:
    document = {field: value for field, value in SOUND_EVENT.items() if field != name}
    assert refusal(document) == ("missing", f"field '{name}' is missing; every event has it")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([*KIND_BY_NAME, "newer"]),
    fields=st.dictionaries(
        st.sampled_from(["rank", "outcome", "step", "rank_seconds", "ranks", "x"]), json_values
    ),
    changes=st.dictionaries(st.sampled_from([*SOUND_EVENT]), json_values, max_size=2),
)
def test_whatever_comes_is_an_event_or_refused_and_an_event_keeps_to_the_schema(
    kind: str, fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    document = SOUND_EVENT | {"kind": kind, "fields": fields} | changes
    try:
        event = check_event(document, now_seconds=NOW)
    except EventError:
        return
    assert is_valid(event.document())
    assert parse_line(json.dumps(event.document())) == event


def test_the_same_parts_give_the_same_id() -> None:
    assert stable_id("slurm", 7, "start") == stable_id("slurm", 7, "start")
    assert stable_id("slurm", 7, "start") != stable_id("slurm", 7, "end")
    assert stable_id("a", "b") != stable_id("a/b")


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


def test_a_spool_stamps_the_owner_and_takes_no_cluster_or_node_from_a_line(tmp_path: Path) -> None:
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
