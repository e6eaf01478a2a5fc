"""Operation traces as files: what is read, and what is refused with one sentence."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyarrow import csv

from lockstep_reports.command import report
from lockstep_reports.readers import find_reader, traces
from lockstep_reports.readers.traces import read_trace

from ..synthetic_trace import SyntheticTrace

PUBLISHED = Path(__file__).parents[2] / "fixtures" / "straggler-bytedance"
TRACE = PUBLISHED / "trace-ST.parquet"
HEADER = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc"


def run_report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(report, [str(argument) for argument in arguments])


def test_the_whole_answer_stands_in_the_json() -> None:
    result = run_report(TRACE, "--json", "-", "--price-per-gpu-hour", "2")
    assert result.exit_code == 0, result.output
    read = json.loads(result.stdout)
    what_if = read["what_if"]
    assert read["source"] == {"kind": "operations"}
    assert read["verdict"]["group"] == "stage 3"
    assert what_if["slowdown"] == pytest.approx(1.1787021836556841, rel=1e-6)
    assert what_if["waste_ratio"] == pytest.approx(1 - 1 / 1.1787021836556841, rel=1e-6)
    assert what_if["m_s"] == pytest.approx(1.2193563788811714, rel=1e-6)
    assert what_if["m_w"] == pytest.approx(0.031404269124045224, rel=1e-6)
    assert what_if["simulation_error_ratio"] == pytest.approx(1 - 1 / 1.01921617557204, rel=1e-5)
    assert len(what_if["by_step"]) == 32
    assert set(what_if["by_worker"]) == set("01234567")
    repair = what_if["stages"]["3"]
    assert repair["saved_seconds_per_step"] == pytest.approx(2.1726968133 - 1.7710396162)
    assert repair["saved_money"] == pytest.approx(repair["saved_gpu_seconds"] * 2 / 3600)
    assert read["run_seconds"] is None
    assert read["startup_seconds"] is None


def test_the_page_and_the_terminal_tell_what_a_repair_would_save(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    result = run_report(TRACE, "--html", page, "--price-per-gpu-hour", "2")
    assert result.exit_code == 0, result.output
    assert "Stage 3 (2 ranks) was slow in forward" in result.output
    text = page.read_text()
    assert "without the slowness of stage 3" in text
    assert 'id="figure-timeline"' in text
    assert "stage 3, ideal" in text


def test_the_kind_is_found_by_content_not_by_name(tmp_path: Path) -> None:
    shutil.copy(TRACE, tmp_path / "data.bin")
    assert find_reader(tmp_path / "data.bin") is traces


@pytest.mark.parametrize("how", ["csv", "csv.gz", "csv.zst", "parquet.gz", "parquet.zst"])
def test_every_packing_is_read_as_it_is(tmp_path: Path, how: str) -> None:
    table = SyntheticTrace(num_steps=3).table()
    path = tmp_path / f"trace.{how}"
    packing = {"gz": "gzip", "zst": "zstd"}.get(how.rpartition(".")[2])
    with pa.output_stream(str(path), compression=packing) as stream:
        csv.write_csv(table, stream) if "csv" in how else pq.write_table(table, stream)
    read = read_trace(path)
    assert len(read.step) == table.num_rows
    assert read.start == pytest.approx(np.asarray(table["start_ts"]), rel=1e-6)


def test_a_layout_beside_the_trace_is_found_by_itself() -> None:
    assert read_trace(TRACE).name == "ST"
    assert not read_trace(TRACE).notes


def test_a_layout_elsewhere_is_told(tmp_path: Path) -> None:
    shutil.copy(TRACE, tmp_path / "x.parquet")
    (tmp_path / "other.yaml").write_text("trial_name: told\ndp_size: 2\npp_size: 4\n")
    read = read_trace(tmp_path / "x.parquet", tmp_path / "other.yaml")
    assert (read.name, read.layout.world_size) == ("told", 8)


def test_parts_of_a_trace_in_a_folder_are_one_trace(tmp_path: Path) -> None:
    table = SyntheticTrace(slow={5: 1.5}).table()
    for rank in range(16):
        part = table.filter(pa.array(np.asarray(table["rank"]) == rank))
        pq.write_table(part, tmp_path / f"rank-{rank}.parquet")
    result = run_report(tmp_path, "--json", "-")
    assert json.loads(result.stdout)["verdict"]["ranks"] == [5]


def test_a_folder_with_one_trace_in_two_formats_is_read_once() -> None:
    assert len(read_trace(PUBLISHED).step) == 6784


def test_two_traces_in_a_folder_are_not_mixed(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        pq.write_table(SyntheticTrace(num_steps=2, seed=seed).table(), tmp_path / f"{name}.parquet")
    result = run_report(tmp_path, "--json", "-")
    assert result.exit_code == 2
    assert "are two traces" in result.stderr


def test_rows_that_cannot_be_true_are_left_out_and_told(tmp_path: Path) -> None:
    table = SyntheticTrace(slow={5: 1.5}).table()
    duration = np.array(table["duration"]).copy()
    duration[[3, 17]] = np.nan, -1
    broken = table.set_column(table.column_names.index("duration"), "duration", pa.array(duration))
    twice = pa.concat_tables([broken, broken.slice(100, 5)])
    pq.write_table(twice, tmp_path / "t.parquet")
    read = json.loads(run_report(tmp_path / "t.parquet", "--json", "-").stdout)
    assert read["verdict"]["ranks"] == [5]
    assert any("2 rows with a time missing" in note for note in read["notes"])
    assert any("more than once" in note for note in read["what_if"]["notes"])


def test_operations_nobody_knows_are_left_out_and_told(tmp_path: Path) -> None:
    text = gzip.decompress((PUBLISHED / "trace-ST.csv.gz").read_bytes()).decode()
    (tmp_path / "t.csv").write_text(text + "0,0,0,23,\x1b[31mteleport,0.1,0.1,0,-1,-1,-1\n")
    read = read_trace(tmp_path / "t.csv")
    assert any("unknown type" in note and "\x1b" not in note for note in read.notes)


def refused(path: Path, *more: str | Path) -> str:
    result = run_report(path, "--json", "-", *more)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("num_bytes", [5, 1000, 40_000, -1])
def test_a_truncated_file_is_one_sentence(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(TRACE.read_bytes()[:num_bytes])
    assert "not a readable operation trace" in refused(path)


def test_a_damaged_file_is_one_sentence_or_still_read(tmp_path: Path) -> None:
    content, draw = TRACE.read_bytes(), np.random.default_rng(0)
    path = tmp_path / "t.parquet"
    for _ in range(40):
        damaged = bytearray(content)
        for offset in draw.integers(4, len(content), 20):
            damaged[offset] ^= 1 << draw.integers(0, 8)
        path.write_bytes(damaged)
        result = run_report(path, "--json", "-")
        assert result.exit_code in {0, 2}, result.exception
        assert result.exit_code == 0 or not result.stdout


def test_a_truncated_gzip_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes((PUBLISHED / "trace-ST.csv.gz").read_bytes()[:30_000])
    assert "not a readable operation trace" in refused(path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pq.read_table(TRACE).drop_columns(["seq_id"]), path)
    assert "lacks the column 'seq_id'" in refused(path)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("0,99999,0,1,gc,0.1,0.1,0,0,0,0", "stage 99999 is not from"),
        ("0,0,-7,1,gc,0.1,0.1,0,0,0,0", "rank -7 is not from"),
        ("0,0,x,1,gc,0.1,0.1,0,0,0,0", "not a readable operation trace"),
        ("0,0,0,1,gc,nan,0.1,0,0,0,0", "no row of the trace"),
        ("", "has no rows"),
    ],
)
def test_values_that_cannot_be_are_named(tmp_path: Path, row: str, sentence: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEADER}\n{row}\n")
    assert sentence in refused(path)


def test_a_gzip_bomb_stops_at_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_ROWS", 10_000)
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(f"{HEADER}\n".encode())
        for _ in range(200):
            file.write(b"0,0,0,1,gc,0.1,0.1,0,0,0,0\n" * 10_000)
    assert "more than 10,000 rows" in refused(path)


def test_a_gzip_bomb_without_a_line_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(f"{HEADER}\n".encode())
        for _ in range(64):
            file.write(b"0" * (1 << 20))
    assert "not a readable operation trace" in refused(path)


def test_a_packed_parquet_bomb_stops_at_the_most_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_FILE_BYTES", 1 << 23)
    path = tmp_path / "bomb.parquet.gz"
    path.write_bytes(gzip.compress(b"PAR1" + b"\0" * (1 << 25)))
    assert "holds more than" in refused(path)


@pytest.mark.parametrize(
    ("rows", "extra", "sentence"),
    [(5_000_000, 0, "more than 33,554,432 rows or"), (1, 8000, "says in ")],
)
def test_a_small_parquet_that_decodes_to_much_is_refused_before_it_is_decoded(
    tmp_path: Path, rows: int, extra: int, sentence: str
) -> None:
    ones, words = pa.array(np.ones(rows)), pa.array(["gc"] * rows).dictionary_encode()
    columns = {name: words if name == "optype" else ones for name in traces.NEEDED}
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table(columns | {f"c{n}": ones for n in range(extra)}), path)
    assert sentence in refused(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dp_size: 0", "dp_size 0 must be a positive"),
        ("dp_size: true", "dp_size True must be a positive"),
        ("dp_size: 1", "dp_size is 1 in the layout, but the rows show 2"),
        ("[1, 2]", "is not a mapping"),
        ("a: [", "is not YAML"),
        ("x" * (2 << 20), "longer than 1,048,576 bytes"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    assert sentence in refused(TRACE, "--meta", tmp_path / "m.yaml")


def test_sparse_rows_do_not_grow_into_a_huge_block(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [f"{at},0,{at},{at},forward-compute,0.1,0.1,{at},0,0,0" for at in range(2000)]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    read = json.loads(run_report(path, "--json", "-").stdout)
    assert read["what_if"] is None
    assert read["verdict"]["kind"] == "unknown"


@pytest.mark.parametrize("content", [b"\x1f\x8b", b"PAR2" * 9, b"a,b\n1,2\n"])
def test_what_is_of_no_known_kind_is_said_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thing"
    path.write_bytes(content)
    assert "is of no kind" in refused(path)
