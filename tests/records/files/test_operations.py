"""Operation rows read back intact, whatever happens to the ring, the file or its writer."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trainer_validation.operation_values import operation_values

from lockstep_records.files.operations import (
    CODES,
    HEADER,
    NAMES,
    OPERATION,
    RING_OFFSET,
    OperationWriter,
    operations_bytes,
    read_operations,
)
from lockstep_records.files.spans import MAX_BYTES, Span, SpanSpool, read_spans, trace_of
from lockstep_records.page.reader import PageError
from lockstep_records.page.writer import NoPageError

from ..killed_writers import killed_files


def written(path: Path, *, steps: int, each: int = 3, rows: int = 16) -> Path:
    writer = OperationWriter(path, rank=3, rows=rows)
    for step in range(steps):
        for index in range(each):
            writer.append(step, CODES["forward-compute"], 10 * step, 10 * step + 7, index)
    writer.close()
    return path


def test_a_row_reads_back_as_it_was_written(memory: Path) -> None:
    writer = OperationWriter(memory / "rank-00003.ops", rank=3, rows=4)
    code = CODES["grads-reduce-scatter"]
    writer.append(41, code, 1_000, 4_500, 2, micro_batch=7, chunk=1, kind=0, flags=1)
    writer.append(41, CODES["optimizer"], 5_000, 4_000, 0)
    first, second = operation_values(writer.path)
    assert (first["step"], first["start_ns"], first["duration_ns"]) == (41, 1_000, 3_500)
    assert (first["operation"], first["axis"]) == ("grads-reduce-scatter", "dp")
    assert (first["micro_batch"], first["chunk"], first["kind"]) == (7, 1, "all_reduce")
    assert second["duration_ns"] == 0, "an end before its start is not a duration"
    assert (second["micro_batch"], second["chunk"], second["kind"], second["axis"]) == (None,) * 4


@given(steps=st.integers(0, 40), each=st.integers(1, 5), rows=st.integers(5, 33))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_ring_that_wrapped_holds_complete_steps_only(
    memory: Path, steps: int, each: int, rows: int
) -> None:
    path = memory / "rank-00003.ops"
    path.unlink(missing_ok=True)
    written(path, steps=steps, each=each, rows=rows)
    by_step: dict[int, list[int]] = {}
    for row in operation_values(path):
        by_step.setdefault(row["step"], []).append(row["sequence"])
    assert all(sequences == list(range(each)) for sequences in by_step.values())
    assert sorted(by_step) == list(range(steps - len(by_step), steps))
    if steps * each <= rows:
        assert len(by_step) == steps
    else:
        assert len(by_step) >= (rows - each) // each


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (HEADER.offsets["magic"], b"LKSTPAGE", "identity"),
        (HEADER.offsets["version"], b"\x09\0\0\0", "version"),
        (HEADER.offsets["row_count"], b"\xff\xff\xff\x7f", "checksum"),
    ],
)
def test_a_damaged_header_is_refused_with_its_reason(
    memory: Path, at: int, value: bytes, reason: str
) -> None:
    path = written(memory / "rank-00003.ops", steps=2)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(value)
    with pytest.raises(PageError) as caught:
        read_operations(path)
    assert caught.value.reason == reason


def test_a_truncated_file_is_refused(memory: Path) -> None:
    path = written(memory / "rank-00003.ops", steps=2)
    with path.open("r+b") as file:
        file.truncate(operations_bytes(16) - 1)
    with pytest.raises(PageError, match="16 rows need"):
        read_operations(path)


@given(damage=st.binary(min_size=1, max_size=64), index=st.integers(0, 15), seed=st.integers(0, 47))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_in_the_ring_costs_the_rows_it_hits_and_no_other(
    memory: Path, damage: bytes, index: int, seed: int
) -> None:
    path = memory / "rank-00003.ops"
    path.unlink(missing_ok=True)
    written(path, steps=5)
    at = RING_OFFSET + index * OPERATION.size + seed
    with path.open("r+b") as file:
        file.seek(at)
        file.write(damage[: operations_bytes(16) - at])
    numbers = [row["number"] for row in operation_values(path)]
    hit = range(index, (at + len(damage) - 1 - RING_OFFSET) // OPERATION.size + 1)
    assert set(range(15)) - set(numbers) <= set(hit) or 0 in hit
    assert numbers == sorted(numbers)


def test_no_file_is_created_on_a_disk(tmp_path: Path) -> None:
    with pytest.raises(NoPageError, match="LOCKSTEP_DIR"):
        OperationWriter(tmp_path / "rank-00003.ops", rank=3)
    assert list(tmp_path.iterdir()) == []


def test_rows_are_intact_up_to_the_last_whenever_the_rank_is_killed(memory: Path) -> None:
    for path in killed_files(memory, "hammer_operations", ".ops", started):
        check_hammered(path)


def started(path: Path) -> bool:
    try:
        return path.exists() and bool(read_operations(path))
    except PageError:
        return False


def check_hammered(path: Path) -> None:
    """Every row says what was written, in order and without a gap but the one being written."""
    rows = operation_values(path)
    numbers = [row["number"] for row in rows]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert len(numbers) >= min(numbers[-1] + 1, 200 - 2 * len(NAMES))
    for row in rows:
        step, code = divmod(row["number"], len(NAMES))
        assert (row["step"], row["operation"]) == (step, NAMES[code])
        assert row["start_ns"] == step * 100 + code


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
