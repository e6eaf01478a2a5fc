"""Values that were written are read: identity, totals and rows; unknown values are absent."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_pages import IDENTITY as NAMED
from sample_pages import TOKENS_PER_STEP, write_step, written_page

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.layout import (
    CHECKPOINT_OUTCOMES,
    COLLECTIVE_KINDS,
    EXTRAS,
    IDENTITY,
    MESH_AXES,
    PHASES,
    ROW,
    ROW_NUMBERS,
    SLOT,
    STEP_BUCKETS,
)
from lockstep_records.page.reader import (
    PageError,
    PageReader,
    newest_rows,
    read_newest,
    read_page,
    read_rows,
    unpack,
)
from lockstep_records.page.writer import PageWriter, RankIdentity

TEXTS = ("cluster", "project", "node", "gpu_uuid", "torch_version", "nccl_version")
SIZES = {field.name: int(field.code[:-1]) for field in IDENTITY.fields if field.code.endswith("s")}
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
printable = st.characters(exclude_categories=["C", "Z"])
singles = st.floats(width=32, allow_nan=False)
doubles = st.floats(allow_nan=False)
moments = st.integers(0, 2**62)


def short(name: str) -> st.SearchStrategy[str]:
    return st.text(printable, max_size=40).filter(lambda text: len(text.encode()) <= SIZES[name])


identities = st.builds(
    RankIdentity,
    job_id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True),
    rank=st.integers(0, 999),
    world_size=st.integers(1000, 2**31 - 1),
    local_rank=st.integers(0, 15),
    attempt=st.integers(0, 10_000),
    mesh=st.dictionaries(st.sampled_from(MESH_AXES), st.integers(0, 99)).map(
        lambda axes: tuple(axes.items())
    ),
    **{name: short(name) for name in TEXTS},
)
rows = st.fixed_dictionaries(
    {
        "step": moments,
        "start_ns": moments,
        "seconds": singles,
        "phase_seconds": st.lists(singles, min_size=len(STEP_PHASES), max_size=len(STEP_PHASES)),
        **dict.fromkeys(("tokens", "samples", "flags"), st.integers(0, 2**32 - 1)),
    },
    optional={
        **dict.fromkeys(("first_arrival_ns", "last_arrival_ns"), moments),
        **dict.fromkeys(("loss", "gradient_norm"), singles),
    },
)
extras = st.dictionaries(st.sampled_from([*EXTRAS]), doubles)


@quick
@given(identity=identities)
def test_an_identity_reads_back_as_it_was_written(memory: Path, identity: RankIdentity) -> None:
    path = memory / "rank-00000.page"
    path.unlink(missing_ok=True)
    PageWriter(path, identity, 1).close()
    read = read_page(path).identity
    assert read["mesh"] == dict(identity.mesh)
    for name in ("job_id", "rank", "world_size", "local_rank", "attempt", *TEXTS):
        assert read[name] == getattr(identity, name)


@quick
@given(written=st.lists(st.tuples(rows, extras), max_size=12), capacity=st.integers(1, 8))
def test_the_last_rows_read_back_as_they_were_written(
    memory: Path, written: list[tuple[dict[str, Any], dict[str, float]]], capacity: int
) -> None:
    path = memory / "rank-00003.page"
    path.unlink(missing_ok=True)
    writer = PageWriter(path, NAMED, capacity)
    for row, its_extras in written:
        for name, number in its_extras.items():
            writer.add_to_row(name, number)
        writer.append(**row)
        writer.commit(1)
    writer.close()
    read = read_rows(read_page(path))
    newest = written[-capacity:]
    assert [row["number"] for row in read] == [*range(len(written) - len(newest), len(written))]
    optional = ("first_arrival_ns", "last_arrival_ns", "loss", "gradient_norm")
    for (values, its_extras), row in zip(newest, read, strict=True):
        phases = dict(zip(STEP_PHASES, values["phase_seconds"], strict=True))
        expected = dict.fromkeys(optional) | values | {"phase_seconds": phases}
        assert {name: row[name] for name in expected} == expected
        assert row["extras"] == dict.fromkeys(EXTRAS) | its_extras


@quick
@given(values=st.dictionaries(st.sampled_from(["loss", "gradient_norm", "learning_rate"]), doubles))
def test_an_unknown_value_is_absent_and_not_zero(memory: Path, values: dict[str, float]) -> None:
    path = memory / "rank-00003.page"
    path.unlink(missing_ok=True)
    writer = PageWriter(path, NAMED, 1)
    for name, value in values.items():
        writer.words[SLOT.word("present")] |= SLOT.presence[name]
        writer.floats[SLOT.word(name)] = value
    writer.commit(1)
    writer.close()
    state = read_page(path).state
    for name in SLOT.presence:
        assert state[name] == values.get(name)


def test_totals_of_steps_checkpoints_and_collectives_add_up(memory: Path) -> None:
    writer = PageWriter(memory / "rank-00003.page", NAMED, 4)
    for _ in range(6):
        write_step(writer)
    for outcome in CHECKPOINT_OUTCOMES:
        writer.count_checkpoint(outcome)
    for number, kind in enumerate(COLLECTIVE_KINDS):
        writer.count_collective(kind, number, number * 100, number / 2)
    writer.commit(time.monotonic_ns())
    state = read_page(writer.path).state
    writer.close()
    assert (state["steps"], state["tokens"]) == (6, 6 * TOKENS_PER_STEP)
    assert state["phase_seconds"]["backward"] == 6 * 0.5
    assert state["step_seconds_sum"] == 6 * 0.875
    assert state["checkpoints"] == dict.fromkeys(CHECKPOINT_OUTCOMES, 1)
    assert state["collectives"] == {kind: n for n, kind in enumerate(COLLECTIVE_KINDS)}
    assert state["collective_bytes"]["send_recv"] == 500
    assert state["collective_seconds"]["send_recv"] == 2.5


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, "0.005"), (0.005, "0.005"), (0.0051, "0.01"), (80.0, "80.0"), (80.1, "more")],
)
def test_a_bucket_counts_up_to_its_bound_and_the_last_one_the_rest(
    memory: Path, seconds: float, bucket: str
) -> None:
    writer = PageWriter(memory / "rank-00003.page", NAMED, 1)
    writer.count_step(0, seconds, 512, 4)
    writer.commit(1)
    counts = read_page(writer.path).state["step_buckets"]
    writer.close()
    assert counts[bucket] == sum(counts.values()) == 1
    assert len(counts) == len(STEP_BUCKETS) + 1


@pytest.mark.parametrize("phase", PHASES)
def test_the_heartbeat_holds_phase_and_time_without_a_commit(memory: Path, phase: str) -> None:
    writer = PageWriter(memory / "rank-00003.page", NAMED, 1)
    now = time.monotonic_ns()
    writer.heartbeat(now, PHASES.index(phase))
    page = read_page(writer.path)
    writer.close()
    assert (page.phase, page.progress_ns) == (phase, now)
    assert page.progress_wall_seconds == pytest.approx(time.time(), abs=5)


def test_the_numbers_of_rows_begin_again_and_no_row_is_lost(memory: Path) -> None:
    writer = PageWriter(memory / "rank-00003.page", NAMED, 16)
    writer.words[SLOT.word("steps")] = ROW_NUMBERS - 3
    for _ in range(6):
        write_step(writer)
    page = read_page(writer.path)
    writer.close()
    steps = list(range(ROW_NUMBERS - 3, ROW_NUMBERS + 3))
    assert [row["step"] for row in read_rows(page)] == steps
    assert [row["step"] for row in newest_rows(page, 6)] == steps


def test_a_row_ahead_of_the_state_counts(memory: Path) -> None:
    writer = PageWriter(memory / "rank-00003.page", NAMED, 4)
    for _ in range(3):
        write_step(writer)
    writer.append(step=3, start_ns=30, seconds=1.0)
    page = read_page(writer.path)
    writer.close()
    assert page.state["steps"] == 3
    assert [row["number"] for row in read_rows(page)] == [0, 1, 2, 3]


def test_rows_that_were_overwritten_since_the_page_was_read_are_left_out(memory: Path) -> None:
    writer = PageWriter(memory / "rank-00003.page", NAMED, 4)
    for _ in range(4):
        write_step(writer)
    page = read_page(writer.path)
    for _ in range(3):
        write_step(writer)
    writer.close()
    assert [row["number"] for row in read_rows(page)] == [3, 4]
    data = read_newest(page, 4)
    assert [unpack(ROW, data[at:])["number"] for at in range(0, len(data), ROW.size)] == [3]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rank": 8}, "rank 8 is outside the world of 8"),
        ({"rank": -1}, "ranks run from 0 to 7"),
        ({"node": "n" * 129}, "node .* takes more than 128 bytes"),
        ({"project": "é" * 33}, "project .* takes more than 64 bytes"),
        ({"node": "a\0"}, "node .* printable"),
        ({"cluster": "\x1b[2J"}, "cluster .* printable"),
        ({"mesh": (("zz", 0),)}, "mesh axis 'zz' is none of dp, fsdp"),
    ],
)
def test_an_identity_that_does_not_fit_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RankIdentity(**{"job_id": "a", "rank": 0, "world_size": 8, **fields})


@pytest.mark.parametrize("count", [0, -1, (1 << 20) + 1])
def test_a_ring_of_an_impossible_size_is_refused(memory: Path, count: int) -> None:
    with pytest.raises(ValueError, match=f"rows {count} must be between"):
        PageWriter(memory / "rank-00003.page", NAMED, count)
    assert list(memory.iterdir()) == []


def test_a_reader_that_is_used_again_reads_the_same_as_a_new_one(memory: Path) -> None:
    writer = PageWriter(memory / "rank-00003.page", NAMED, 16)
    reader, steps_read = PageReader(writer.path), []
    for steps in range(4):
        assert reader.read() == read_page(writer.path)
        assert reader.read().identity is reader.read().identity
        steps_read.append(reader.read().state["steps"])
        write_step(writer)
        assert steps == steps_read[-1]
    writer.close()
    (memory / "other").mkdir()
    other = written_page(memory / "other", steps=1)
    other.replace(writer.path)
    assert reader.read() == read_page(writer.path)
    with writer.path.open("r+b") as file:
        file.truncate(file.seek(0, 2) - 1)
    with pytest.raises(PageError, match="rows need"):
        reader.read()
