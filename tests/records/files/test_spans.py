"""The spool of spans is bounded, survives any end, and never blocks a rank."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_records.files.spans import MAX_BYTES, Span, SpanSpool, read_spans, trace_of

TRACE = trace_of("job-a", {})


@pytest.fixture(name="path")
def _path(memory: Path) -> Path:
    return memory / "rank-00000.spans.jsonl"


def span(number: int, /, **other: object) -> Span:
    values = {
        "name": "checkpoint",
        "number": number,
        "trace_id": TRACE.trace_id,
        "span_id": TRACE.span_id(0, 0, number),
        "parent_id": TRACE.span_id(0, 0),
        "start_ns": 10,
        "end_ns": 20,
        "attributes": {"step": number, "seconds": 0.5},
    }
    return Span(**{**values, **other})  # type: ignore[arg-type]  # fields by name


def test_spans_read_back_as_they_were_written(path: Path) -> None:
    spool = SpanSpool(path)
    for number in range(5):
        spool.write(span(number))
    assert read_spans(path) == [span(number) for number in range(5)]


def test_a_full_spool_keeps_the_newest_and_its_bound(path: Path) -> None:
    spool = SpanSpool(path)
    for number in range(3000):
        spool.write(span(number))
    numbers = [read.number for read in read_spans(path)]
    assert numbers == list(range(numbers[0], 3000))
    assert len(numbers) > 300
    assert sum(file.stat().st_size for file in path.parent.iterdir()) <= MAX_BYTES


def test_a_folder_that_has_gone_loses_spans_and_raises_nothing(path: Path) -> None:
    spool = SpanSpool(path, max_bytes=1000)
    spool.write(span(0))
    shutil.rmtree(path.parent)
    for number in range(1, 9):
        spool.write(span(number))
    assert spool.lost > 0


def test_a_line_that_found_no_room_takes_no_other_with_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = SpanSpool(path)
    spool.write(span(0))
    full_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: full_write(descriptor, line[:20]))
    spool.write(span(1))
    monkeypatch.undo()
    spool.write(span(2))
    assert [read.number for read in read_spans(path)] == [0, 2]
    assert spool.lost == 1


def test_half_a_line_is_no_span_until_it_is_complete(path: Path) -> None:
    SpanSpool(path).write(span(0))
    line = path.read_bytes()
    path.write_bytes(line + line[: len(line) // 2])
    assert read_spans(path) == [span(0)]


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_content_of_a_spool_makes_its_reader_fail(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-00000.spans.jsonl"
        path.write_bytes(content + b"\n")
        assert all(read.number >= 0 for read in read_spans(path))


@pytest.mark.parametrize(
    "line",
    [
        b'{"name":"checkpoint"}',
        b"[" * 4000,
        b"null",
        b'{"name":["checkpoint"],"number":1}',
        b"\xff\xfe",
    ],
)
def test_hostile_lines_are_left_out_and_the_others_stay(path: Path, line: bytes) -> None:
    SpanSpool(path).write(span(0))
    path.write_bytes(line + b"\n" + path.read_bytes())
    assert read_spans(path) == [span(0)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "step"},
        {"trace_id": "0" * 32},
        {"span_id": "xyz"},
        {"number": -1},
        {"end_ns": 5},
        {"end_ns": 1 << 63},
    ],
)
def test_a_span_with_a_field_that_cannot_be_is_left_out(path: Path, wrong: dict[str, int]) -> None:
    SpanSpool(path).write(span(0, **wrong))
    assert read_spans(path) == []


def test_ranks_restarts_and_requeues_of_a_job_share_one_trace() -> None:
    requeued = trace_of("job-a", {"SLURM_RESTART_COUNT": "1"})
    assert requeued.trace_id == TRACE.trace_id
    ids = {
        trace.span_id(*path) for trace in (TRACE, requeued) for path in ((), (0,), (0, 1), (1, 0))
    }
    assert len(ids) == 8
    assert trace_of("job-b", {}).trace_id != TRACE.trace_id


def test_the_trace_of_the_environment_is_taken_when_it_is_well_formed() -> None:
    trace_id, parent_id = os.urandom(16).hex(), os.urandom(8).hex()
    trace = trace_of("job-a", {"TRACEPARENT": f"00-{trace_id}-{parent_id}-01"})
    assert (trace.trace_id, trace.parent_id, trace.sampled) == (trace_id, parent_id, True)
    assert not trace_of("job-a", {"TRACEPARENT": f"00-{trace_id}-{parent_id}-00"}).sampled
    for wrong in (
        "",
        "00-abc-def-01",
        f"00-{'0' * 32}-{parent_id}-01",
        f"ff-{trace_id}-{parent_id}-01",
    ):
        assert trace_of("job-a", {"TRACEPARENT": wrong}) == TRACE


def test_what_a_rank_finds_in_its_environment_leads_to_the_same_ids() -> None:
    inside = trace_of("job-a", {"TRACEPARENT": TRACE.traceparent()})
    assert inside.parent_id == TRACE.span_id()
    assert inside.span_id(0, 3) == TRACE.span_id(0, 3)
