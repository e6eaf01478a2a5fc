"""The published schema of events, and the check that a receiver makes, agree on every document."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from writers.events import markdown_page, schema

from lockstep_records.events.bounds import EventError
from lockstep_records.events.event import (
    MAX_FUTURE_SECONDS,
    Event,
    append_event,
    check_event,
    parse_line,
    read_events,
    stable_id,
)
from lockstep_records.events.kinds import EVENT_KINDS, KIND_BY_NAME, EventField

DOCS = Path(__file__).parents[3] / "docs" / "formats"
NOW = 1_800_000_000.0
SOUND: dict[str, Any] = {
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
    document = SOUND | {"kind": "gpu_swapped", "fields": {"slot": {"a": [1, None]}}}
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
    refused, sentence = refusal(SOUND | changes)
    assert refused == reason
    assert words in sentence


@pytest.mark.parametrize("name", ["id", "kind", "job_id", "attempt", "time", "fields"])
def test_a_missing_field_is_named(name: str) -> None:
    document = {field: value for field, value in SOUND.items() if field != name}
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
    changes=st.dictionaries(st.sampled_from([*SOUND]), json_values, max_size=2),
)
def test_whatever_comes_is_an_event_or_refused_and_an_event_keeps_to_the_schema(
    kind: str, fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    document = SOUND | {"kind": kind, "fields": fields} | changes
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
