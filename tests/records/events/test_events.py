"""Events of a job: what is appended is read, and hostile lines harm nobody."""

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep_records.events.event import (
    FILE_NAME,
    Event,
    append_event,
    finish_time,
    is_finished,
    read_events,
)
from lockstep_records.events.kinds import KINDS

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


def test_a_job_without_events_has_none(tmp_path: Path) -> None:
    assert read_events(tmp_path / "never") == []


def test_an_event_keeps_its_id_so_that_a_second_delivery_is_recognised(tmp_path: Path) -> None:
    twice = Event(kind="job_started", job_id="job-a", attempt=0)
    other = Event(kind="job_started", job_id="job-a", attempt=0)
    for event in (twice, twice, other):
        append_event(tmp_path, event)
    assert [event.id for event in read_events(tmp_path)] == [twice.id, twice.id, other.id]
    assert twice.id != other.id


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
def test_a_line_that_is_no_event_is_left_out_and_the_others_stay(
    tmp_path: Path, line: str | bytes
) -> None:
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
