"""Flight Recorder dumps get the same verdict in whatever order, clocks and names they are."""

import gzip
import json
import pickle
import random
import re
from collections.abc import Callable
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
from lockstep_reports.readers.unpickled import plain_values

from ..matrices import matrix
from ..report_command import report_json, reported
from ..synthetic_job import published
from ..synthetic_trace import SyntheticTrace

FIXTURES = Path(__file__).parents[2] / "fixtures"
FLIGHTS = FIXTURES / "flight-recorder-nvrx"
SCENARIOS = ("gpu_error_2nd", "lock_gil_1st")
STUCK = {9, 14}
LIMITS = settings(max_examples=5, deadline=None, derandomize=True)
Dumps = dict[int, dict[str, Any]]
Change = Callable[[int], int]


def dumps_of(scenario: str) -> Dumps:
    return {
        int(file.name.rpartition("_")[2]): plain_values(file.read_bytes())
        for file in (FLIGHTS / scenario).glob("_dump_*")
    }


def written(folder: Path, dumps: Dumps, name: str = "trace_{}.pkl") -> Path:
    for rank, dump in dumps.items():
        (folder / name.format(rank)).write_bytes(pickle.dumps(dump))
    return folder


def renumbered(dumps: Dumps, change: Change) -> Dumps:
    changed = {}
    for rank, dump in dumps.items():
        groups = {
            name: group
            | {"ranks": json.dumps(sorted(change(at) for at in json.loads(group["ranks"])))}
            for name, group in dump["pg_config"].items()
        }
        changed[change(rank)] = dump | {"pg_config": groups}
    return changed


def shifted(dump: dict[str, Any], seconds: float, factor: float = 1.0) -> dict[str, Any]:
    """The dump by a clock that is ahead, or by one of another speed."""
    entries = []
    for entry in dump["entries"]:
        times = {
            name: int(value * factor + seconds * 1e9)
            for name, value in entry.items()
            if name.startswith("time_") and isinstance(value, int)
        }
        entries.append(entry | times)
    return dump | {"entries": entries}


@pytest.mark.parametrize("scenario", SCENARIOS)
@LIMITS
@given(order=st.permutations(range(16)))
def test_dumps_of_ranks_with_other_numbers_in_files_of_other_names(
    tmp_path_factory: pytest.TempPathFactory, scenario: str, order: list[int]
) -> None:
    dumps = renumbered(dumps_of(scenario), lambda rank: order[rank])
    for name in ("nccl_trace_rank_{}", "host-{}.example.dump"):
        report = reported(written(tmp_path_factory.mktemp("f"), dumps, name))
        assert set(report.verdict.ranks) == {order[rank] for rank in STUCK}
        assert report.verdict.cause == "hang"


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("rank", matrix([0, 9, 15], 1))
@pytest.mark.parametrize("skew", matrix([-0.03, 3600.0, 0.03], 2))
def test_a_clock_that_is_off_changes_neither_verdict_nor_who_was_last(
    tmp_path: Path, scenario: str, rank: int, skew: float
) -> None:
    dumps = dumps_of(scenario)
    dumps[rank] = shifted(dumps[rank], skew)
    plain, other = (
        published(reported(FLIGHTS / scenario)),
        published(reported(written(tmp_path, dumps))),
    )
    assert other["verdict"]["ranks"] == plain["verdict"]["ranks"]
    if abs(skew) < 1:
        pairs = zip(plain["collectives"], other["collectives"], strict=True)
        last_ranks = [(rank["last_rank"], other["last_rank"]) for rank, other in pairs]
        assert all(rank == other or None in {rank, other} for rank, other in last_ranks)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("broken", matrix([0, 7, 15], 1))
def test_a_dump_that_is_cut_short_or_gone_leaves_the_others_to_tell(
    tmp_path: Path, scenario: str, broken: int
) -> None:
    folder = written(tmp_path, dumps_of(scenario))
    file = folder / f"trace_{broken}.pkl"
    file.write_bytes(file.read_bytes()[:-40])
    report = reported(folder)
    assert any(f"trace_{broken}.pkl" in note for note in report.steps.notes)
    file.unlink()
    for judged in (report, reported(folder)):
        assert judged.verdict.kind in {"rank", "unknown"}
        assert set(judged.verdict.ranks) <= STUCK


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("seed", matrix(range(3), 1))
def test_entries_that_are_missing_odd_or_in_another_order_change_no_verdict(
    tmp_path: Path, scenario: str, seed: int
) -> None:
    draw, dumps = random.Random(seed), dumps_of(scenario)
    for dump in dumps.values():
        draw.shuffle(dump["entries"])
        dump["entries"] += [{}, {"state": float("nan"), "collective_seq_id": "x"}]
    assert set(reported(written(tmp_path, dumps)).verdict.ranks) == STUCK


def late_dumps(late: int, seconds: float, *, ends: bool) -> Dumps:
    """Four ranks of which one hands each of 40 collectives over late; all are done together."""
    draw = np.random.default_rng(1)
    arrive = np.arange(40) + draw.uniform(0, 1e-3, (4, 40))
    arrive[late] += seconds
    done = arrive.max(axis=0) + 0.01
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return {
        rank: {
            "version": "2.9",
            "pg_config": group,
            "entries": [
                {
                    "process_group": ["0", "default_pg"],
                    "pg_id": 0,
                    "collective_seq_id": at,
                    "profiling_name": "nccl:all_reduce",
                    "state": "completed",
                    "time_created_ns": int((1.7e9 + arrive[rank, at]) * 1e9),
                    "time_discovered_completed_ns": int((1.7e9 + done[at]) * 1e9) if ends else None,
                }
                for at in range(40)
            ],
        }
        for rank in range(4)
    }


@pytest.mark.parametrize("skewed", [None, 0, 2])
@pytest.mark.parametrize("ends", [True, False])
def test_dumps_tell_who_came_last_by_how_much(
    tmp_path: Path, *, skewed: int | None, ends: bool
) -> None:
    dumps = late_dumps(2, 0.3, ends=ends)
    if skewed is not None:
        dumps[skewed] = shifted(dumps[skewed], 0.03)
    payload = published(reported(written(tmp_path, dumps)))
    assert len(payload["collectives"]) == 40
    assert {item["last_rank"] for item in payload["collectives"]} == {2}
    spreads = [item["start_spread_seconds"] for item in payload["collectives"]]
    assert spreads == pytest.approx([0.3] * 40, abs=2e-3 if ends else 0.035)
    assert (payload["alignment"]["residual_seconds"] is None) == (not ends)


def test_arrivals_that_clocks_cannot_tell_apart_have_no_order(tmp_path: Path) -> None:
    report = reported(written(tmp_path, late_dumps(2, 0.02, ends=False)))
    payload = published(report)
    assert {item["last_rank"] for item in payload["collectives"]} == {None}
    assert {item["start_spread_seconds"] for item in payload["collectives"]} == {None}
    assert any("have no order" in note for note in payload["notes"])


PUBLISHED = Path(__file__).parents[2] / "fixtures" / "straggler-bytedance"
OPERATION_LIMITS = settings(max_examples=6, deadline=None, derandomize=True)
FORMATS = pytest.mark.parametrize("form", ["parquet", "csv"])


@pytest.fixture(name="rows", scope="module")
def _rows() -> pa.Table:
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
@OPERATION_LIMITS
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


@OPERATION_LIMITS
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


PROFILES = {
    int(path.name.split("-")[-1].partition(".")[0]): path
    for path in (FIXTURES / "kineto-hta").glob("*.gz")
}


def kineto(folder: Path, clock: Callable[[int, float], float], late: int | None = None) -> Path:
    """Four ranks, 120 steps of a second, pairs and all together; ``clock`` gives a rank's time."""
    draw = np.random.default_rng(3)
    arrive = np.arange(120)[:, None] + 0.5 + draw.uniform(0, 2e-3, (120, 4))
    if late is not None:
        arrive[:, late] += 0.08
    groups = {"all": (0, 1, 2, 3), "left": (0, 1), "right": (2, 3)}
    events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(4)}
    for step in range(120):
        for at, (name, members) in enumerate(groups.items()):
            begins = {rank: arrive[step, rank] + 0.1 * at for rank in members}
            end = max(begins.values()) + 0.01
            for rank, begin in begins.items():
                first, last = clock(rank, begin), clock(rank, end)
                events[rank].append({
                    "ph": "X", "name": "ncclDevKernel_AllReduce_Sum(x)", "cat": "kernel",
                    "ts": (1.7e9 + first) * 1e6, "dur": (last - first) * 1e6,
                    "args": {"Process Group Name": name},
                })  # fmt: skip
    for rank, rank_events in events.items():
        about = {"rank": rank, "world_size": 4}
        text = json.dumps({"distributedInfo": about, "traceEvents": rank_events})
        (folder / f"worker.{rank}.pt.trace.json").write_text(text)
    return folder


@pytest.mark.parametrize("late", [None, 1])
@pytest.mark.parametrize("rank", matrix([0, 1, 3], 1))
@pytest.mark.parametrize("rate", [-1e-4, 1e-4])
def test_the_drift_of_a_ranks_clock_is_found_and_taken_out(
    tmp_path: Path, *, late: int | None, rank: int, rate: float
) -> None:
    def clock(of: int, true: float) -> float:
        return true + (0.03 + rate * true if of == rank else 0.0)

    report = reported(kineto(tmp_path, clock, late))
    payload = published(report)
    assert payload["verdict"]["ranks"] == ([] if late is None else [late])
    drifts = payload["alignment"]["drifts"]
    others = [drifts[f"rank {at}"] for at in range(4) if at != rank]
    assert drifts[f"rank {rank}"] - np.mean(others) == pytest.approx(rate, rel=0.05)
    assert payload["alignment"]["residual_p95_seconds"] < 1e-3
    if late is not None:
        assert {c["last_rank"] for c in payload["collectives"] if len(c["ranks"]) == 4} == {late}


def profile(rank: int) -> str:
    return gzip.decompress(PROFILES[rank].read_bytes()).decode()


def payload_of(folder: Path, texts: dict[str, str]) -> dict[str, Any]:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return published(reported(folder))


@pytest.mark.parametrize("names", [("a.json", "b.json"), ("host9_rank7.json", "host1_rank2.json")])
@pytest.mark.parametrize("swapped", [False, True])
def test_real_profiles_are_paired_by_the_rank_they_tell_and_not_by_their_name(
    tmp_path: Path, names: tuple[str, str], *, swapped: bool
) -> None:
    plain = published(reported(FIXTURES / "kineto-hta"))
    ranks = (1, 0) if swapped else (0, 1)
    texts = {
        name: re.sub(r'("rank": ?)\d+', rf"\g<1>{rank}", profile(at))
        for name, rank, at in zip(names, ranks, (0, 1), strict=True)
    }
    payload = payload_of(tmp_path, texts)
    assert payload["verdict"]["kind"] == plain["verdict"]["kind"]
    mapped = {0: ranks[0], 1: ranks[1], None: None}
    assert [c["last_rank"] for c in payload["collectives"]] == [
        mapped[c["last_rank"]] for c in plain["collectives"]
    ]


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_of_two_profiles_a_whole_one_is_read_beside_a_broken(tmp_path: Path, share: float) -> None:
    text = profile(1)
    payload = payload_of(tmp_path, {"0.json": profile(0), "1.json": text[: int(share * len(text))]})
    assert payload["verdict"]["kind"] == "unknown"
    assert any("1.json is cut short" in note for note in payload["notes"])
    assert payload["missing_ranks"]
