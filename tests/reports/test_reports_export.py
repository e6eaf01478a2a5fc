"""Operations leave as Parquet in the columns of the published straggler traces."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lockstep_records.files.operations import (
    CODES,
    FROM_PHASES,
    ON_DEVICE,
    OperationWriter,
    operations_path,
)
from lockstep_records.page.layout import SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.command import report
from lockstep_reports.export import export_operations

PUBLISHED = [
    "dp_rank",
    "stage",
    "rank",
    "step",
    "optype",
    "start_ts",
    "duration",
    "seq_id",
    "mc",
    "mb_id",
    "gmc",
]


@pytest.fixture
def job() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    yield root / "jobs" / "job-a"
    shutil.rmtree(root, ignore_errors=True)


def write_rank(job: Path, rank: int, steps: list[int], *, late_ns: int = 0, last: int = 99) -> None:
    """A rank of dp 2 x pp 2 x tp 2, which records one forward and one send in each of ``steps``."""
    mesh = (("dp", rank // 4), ("pp", rank // 2 % 2), ("tp", rank % 2))
    page = PageWriter(
        job / "0" / f"rank-{rank:05d}.page",
        RankIdentity(job_id="job-a", rank=rank, world_size=8, mesh=mesh),
        rows=4,
    )
    page.signed[SLOT.word("step")] = last
    page.words[SLOT.word("present")] |= SLOT.presence["step"]
    page.commit(1)
    writer = OperationWriter(operations_path(page.path), rank, rows=64)
    for step in steps:
        begin = step * 1_000_000_000 + late_ns
        forward = CODES["forward-compute"]
        stage = rank // 2 % 2
        writer.append(step, forward, begin, begin + 250_000_000, 0, micro_batch=0, chunk=stage)
        writer.append(step, CODES["forward-send"], begin + 250_000_000, begin + 300_000_000, 0)
    writer.close()
    page.close()


def select_type(table: pa.Table, name: str) -> pa.Table:
    return table.filter(pc.equal(table["optype"].cast(pa.string()), name))


def write_job(job: Path) -> None:
    for rank in range(8):
        write_rank(job, rank, [8, 16] if rank else [0, 8, 16])


def test_the_columns_are_those_of_the_published_traces(job: Path, tmp_path: Path) -> None:
    write_job(job)
    export = export_operations(job / "0", "job-a", tmp_path / "out")
    table = pq.read_table(export.trace)
    assert table.column_names == PUBLISHED
    assert (export.rows, export.steps, export.ranks) == (table.num_rows, 2, 4)
    assert sorted(set(table["rank"].to_pylist())) == [0, 2, 4, 6], "the first of each tensor group"
    assert sorted(set(table["step"].to_pylist())) == [8, 16], "step 0 is not of all ranks"
    forward = select_type(table, "forward-compute")
    assert set(forward["mb_id"].to_pylist()) == set(forward["mc"].to_pylist()) == {0}
    assert forward["gmc"].to_pylist() == forward["stage"].to_pylist()
    send = select_type(table, "forward-send")
    assert {index for name in ("mb_id", "mc", "gmc") for index in send[name].to_pylist()} == {-1}
    assert forward["duration"].to_pylist() == pytest.approx([0.25] * 8)
    meta = dict(line.split(": ") for line in export.meta.read_text().splitlines())
    assert [meta[f"{axis}_size"] for axis in ("dp", "pp", "tp", "world")] == ["2", "2", "2", "8"]


def test_starts_count_from_the_first_operation_of_the_step_over_all_ranks(
    job: Path, tmp_path: Path
) -> None:
    write_rank(job, 0, [8])
    write_rank(job, 2, [8], late_ns=40_000_000)
    table = pq.read_table(export_operations(job / "0", "job-a", tmp_path).trace)
    first = select_type(table, "forward-compute").sort_by("rank")["start_ts"].to_pylist()
    assert first[0] == 0.0
    assert first[1] == pytest.approx(0.04, abs=0.005), "two clock pairs, taken one after the other"


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ([(FROM_PHASES, 0.25)], [0.25]),
        ([(FROM_PHASES, 0.25), (FROM_PHASES | ON_DEVICE, 0.75)], [0.75]),
        ([(FROM_PHASES, 0.25), (0, 0.5)], [0.25, 0.5]),
        ([(0, 0.5), (FROM_PHASES | ON_DEVICE, 0.75)], [0.5, 0.75]),
    ],
    ids=["the host's alone", "both", "none of a device", "another source's beside the device's"],
)
def test_rows_of_the_host_are_left_out_where_the_device_recorded_its_seconds(
    job: Path, tmp_path: Path, rows: list[tuple[int, float]], seconds: list[float]
) -> None:
    write_rank(job, 0, [7], last=9)
    path = operations_path(job / "0" / "rank-00000.page")
    path.unlink()
    writer = OperationWriter(path, 0, rows=64)
    forward, optimizer = CODES["forward-compute"], CODES["optimizer"]
    for flags, duration in rows:
        writer.append(8, forward, 10**9, 10**9 + int(duration * 1e9), 0, flags=flags)
    writer.append(8, optimizer, 2 * 10**9, 2 * 10**9 + 1000, 0, flags=FROM_PHASES)
    writer.append(9, forward, 3 * 10**9, 3 * 10**9 + 10**9, 0, flags=FROM_PHASES)
    writer.close()
    table = pq.read_table(export_operations(job / "0", "job-a", tmp_path / "out").trace)
    at_eight = table.filter(pc.equal(table["step"], 8))
    durations = select_type(at_eight, "forward-compute")["duration"].to_pylist()
    assert sorted(durations) == pytest.approx(seconds)
    assert select_type(at_eight, "optimizer").num_rows == 1, "the device told nothing of it"
    assert table.filter(pc.equal(table["step"], 9)).num_rows == 1, "nor of this step"


def test_a_step_that_was_never_completed_is_left_out(job: Path, tmp_path: Path) -> None:
    write_rank(job, 0, [8, 16], last=8)
    table = pq.read_table(export_operations(job / "0", "job-a", tmp_path).trace)
    assert set(table["step"].to_pylist()) == {8}


def test_ranks_without_a_common_step_export_nothing(job: Path, tmp_path: Path) -> None:
    write_rank(job, 0, [8])
    write_rank(job, 2, [16])
    with pytest.raises(ValueError, match="lockstep switch"):
        export_operations(job / "0", "job-a", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_exports_or_says_in_one_sentence_why_not(job: Path, tmp_path: Path) -> None:
    write_job(job)
    out = tmp_path / "out"
    result = CliRunner().invoke(report, [str(job), "--export", str(out)])
    assert result.exit_code == 0, result.output
    assert "16 operations, 2 steps, 4 ranks" in result.output
    for path in (job / "0").glob("*.ops"):
        path.unlink()
    refused = CliRunner().invoke(report, [str(job), "--export", str(tmp_path / "none")])
    assert refused.exit_code == 2
    assert "no operations to export" in refused.output
    assert not (tmp_path / "none").exists()
