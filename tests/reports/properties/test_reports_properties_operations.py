"""Operation traces get the same verdict however they were written: the published one, changed.

Parquet and CSV, ranks and replicas with other numbers, times in another unit, rows in any order,
parts in files of their own, hosts of any name, a clock thirty milliseconds off, a trace cut short.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv

from lockstep_reports.command import report

from ..matrices import matrix
from ..report_command import report_json
from ..synthetic_trace import SyntheticTrace

PUBLISHED = Path(__file__).parents[2] / "fixtures" / "straggler-bytedance"
LIMITS = settings(max_examples=6, deadline=None, derandomize=True)
FORMATS = pytest.mark.parametrize("form", ["parquet", "csv"])


@pytest.fixture(name="rows", scope="module")
def _rows() -> pa.Table:
    """The published trace."""
    return pq.read_table(PUBLISHED / "trace-ST.parquet")


def judged(table: pa.Table, folder: Path, form: str, *, layout: bool = True) -> dict[str, Any]:
    path = folder / f"trace.{form}"
    csv.write_csv(table, path) if form == "csv" else pq.write_table(table, path)
    if layout:
        meta = (PUBLISHED / "meta-ST.yaml").read_text()
        (folder / "meta-trace.yaml").write_text(meta)
    return report_json(path)


def changed(table: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    index = table.column_names.index(name)
    return table.set_column(index, name, pa.array(values, table.schema.field(name).type))


def column(table: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = table[name].to_numpy()
    return values


def heavy_stage(payload: dict[str, Any]) -> tuple[Any, ...]:
    verdict = payload["verdict"]
    return verdict["kind"], verdict["group"], verdict["phase"], verdict["cause"]


TRUTH = ("group", "stage 3", "forward", "stage_imbalance")


@FORMATS
@LIMITS
@given(order=st.tuples(st.permutations(range(8)), st.integers(0, 99)))
def test_ranks_replicas_and_rows_in_another_order(
    tmp_path_factory: pytest.TempPathFactory,
    rows: pa.Table,
    form: str,
    order: tuple[list[int], int],
) -> None:
    ranked, seed = order
    table = changed(rows, "rank", np.array(ranked)[column(rows, "rank")])
    if seed % 2:
        table = changed(table, "dp_rank", 1 - column(rows, "dp_rank"))
    table = table.take(np.random.default_rng(seed).permutation(table.num_rows))
    payload = judged(table, tmp_path_factory.mktemp("t"), form)
    assert heavy_stage(payload) == TRUTH
    assert set(payload["verdict"]["ranks"]) == {ranked[6], ranked[7]}
    assert payload["what_if"]["slowdown"] == pytest.approx(1.1787, abs=1e-4)


@FORMATS
@pytest.mark.parametrize("rank", matrix(range(8), 2))
@pytest.mark.parametrize("skew", [-0.03, 0.03])
def test_a_clock_thirty_milliseconds_off(
    tmp_path: Path, rows: pa.Table, form: str, rank: int, skew: float
) -> None:
    start = column(rows, "start_ts") + np.where(column(rows, "rank") == rank, skew, 0)
    payload = judged(changed(rows, "start_ts", start), tmp_path, form)
    assert heavy_stage(payload) == TRUTH
    assert sorted(payload["verdict"]["ranks"]) == [6, 7]


@pytest.mark.parametrize("hosts", [("node-{}", "n{}"), ("host-{:04d}.x", "{}-gpu")])
def test_a_slow_node_is_named_whatever_it_is_called(tmp_path: Path, hosts: tuple[str, str]) -> None:
    job = SyntheticTrace(replicas=16, slow=dict.fromkeys(range(4, 8), 1.5), ranks_on_node=4)
    table = job.table()
    for number, form in enumerate(hosts):
        named = pa.array([form.format(rank // 4) for rank in column(table, "rank")])
        folder = tmp_path / str(number)
        folder.mkdir()
        index = table.column_names.index("node")
        payload = judged(table.set_column(index, "node", named), folder, "parquet", layout=False)
        assert (payload["verdict"]["group"], payload["verdict"]["ranks"]) == (
            form.format(1),
            [4, 5, 6, 7],
        )


@pytest.mark.parametrize("by", ["step", "rank"])
@pytest.mark.parametrize("overlap", [0, 1])
def test_parts_in_files_of_their_own_that_may_overlap(
    tmp_path: Path, rows: pa.Table, by: str, overlap: int
) -> None:
    values = column(rows, by)
    median = np.median(values)
    for name, selected in (("b", values <= median + overlap), ("a", values > median)):
        pq.write_table(rows.filter(pa.array(selected)), tmp_path / f"{name}.parquet")
    payload = report_json(tmp_path)
    assert heavy_stage(payload) == TRUTH
    assert payload["what_if"]["slowdown"] == pytest.approx(1.1787, abs=1e-4)


@LIMITS
@given(share=st.floats(0.2, 0.95))
def test_a_table_that_breaks_off_tells_what_its_whole_steps_tell_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    text = gzip.decompress((PUBLISHED / "trace-ST.csv.gz").read_bytes())
    folder = tmp_path_factory.mktemp("t")
    path = folder / "trace.csv"
    path.write_bytes(text[: int(share * len(text))])
    result = CliRunner().invoke(report, [str(path), "--json", "-"])
    assert result.exit_code in {0, 2}, result.output
    if result.exit_code:
        assert result.stdout == ""
        assert len(result.stderr.partition("Error: ")[2].strip().splitlines()) == 1
        return
    payload = json.loads(result.stdout)
    if payload["verdict"]["kind"] != "unknown":
        assert heavy_stage(payload) == TRUTH


@pytest.mark.parametrize("rank", matrix([0, 3, 7], 1))
@pytest.mark.parametrize("jump", matrix([-3600.0, 0.5, -0.5, 5.0], 2))
def test_a_clock_that_jumps_in_the_middle(
    tmp_path: Path, rows: pa.Table, rank: int, jump: float
) -> None:
    step = column(rows, "step")
    after = (column(rows, "rank") == rank) & (step > np.unique(step)[20])
    start = column(rows, "start_ts").astype(np.float64) + np.where(after, jump, 0)
    index = rows.column_names.index("start_ts")
    payload = judged(rows.set_column(index, "start_ts", pa.array(start)), tmp_path, "parquet")
    assert heavy_stage(payload) == TRUTH
    assert payload["what_if"]["slowdown"] == pytest.approx(1.1787, abs=5e-3)


@pytest.mark.parametrize("name", ["start_ts", "duration"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1e9, 1e9])
def test_a_few_times_that_cannot_be_true(
    tmp_path: Path, rows: pa.Table, name: str, value: float
) -> None:
    values = column(rows, name).copy()
    values[[100, 2000]] = value
    payload = judged(changed(rows, name, values), tmp_path, "parquet")
    assert heavy_stage(payload) == TRUTH
    assert payload["notes"] or payload["what_if"]["notes"]
    assert not payload["steps"]["spikes"]
