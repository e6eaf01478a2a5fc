"""Profiler traces and Flight Recorder dumps get the same verdict however they were written.

Ranks with other numbers, files with other names, times in another unit, clocks that are off or
drift or jump, files cut short, ranks missing, dumps of several moments in one folder.
"""

import gzip
import json
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_reports.read import Recording, read_source
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.unpickled import plain_values
from lockstep_reports.report import Report, as_json, make_report

FIXTURES = Path(__file__).parents[1] / "fixtures"
FLIGHTS = FIXTURES / "flight-recorder-nvrx"
SCENARIOS = ("gpu_error_2nd", "lock_gil_1st")
CULPRITS = {9, 14}
PROFILES = {
    int(path.name.split("-")[-1].partition(".")[0]): path
    for path in (FIXTURES / "kineto-hta").glob("*.gz")
}
LIMITS = settings(max_examples=5, deadline=None, derandomize=True)
Dumps = dict[int, dict[str, Any]]
Change = Callable[[int], int]


def reported(path: Path) -> Report:
    read = read_source(str(path), ReadOptions())
    assert isinstance(read, Recording)
    return make_report(read, now_seconds=0.0)


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
    made = {}
    for rank, dump in dumps.items():
        groups = {
            name: group
            | {"ranks": json.dumps(sorted(change(at) for at in json.loads(group["ranks"])))}
            for name, group in dump["pg_config"].items()
        }
        made[change(rank)] = dump | {"pg_config": groups}
    return made


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
def test_the_faulty_ranks_stand_where_the_recording_says(scenario: str) -> None:
    dumps = dumps_of(scenario)
    entered = {rank: dump["pg_status"]["0"] for rank, dump in dumps.items()}
    last = {rank: status["last_enqueued_collective"] for rank, status in entered.items()}
    others = {last[rank] for rank in last if rank not in CULPRITS}
    if scenario == "gpu_error_2nd":
        assert ({last[rank] for rank in CULPRITS}, others) == ({13996}, {13998})
    else:
        assert all(not dumps[rank]["entries"] for rank in CULPRITS)
        assert max(last[rank] for rank in CULPRITS) <= min(others)
    evidence = " ".join(reported(FLIGHTS / scenario).verdict.evidence)
    assert ("no collective outstanding" in evidence) == (scenario == "lock_gil_1st")


@pytest.mark.parametrize("scenario", SCENARIOS)
@LIMITS
@given(order=st.permutations(range(16)))
def test_dumps_of_ranks_with_other_numbers_in_files_of_other_names(
    tmp_path_factory: pytest.TempPathFactory, scenario: str, order: list[int]
) -> None:
    dumps = renumbered(dumps_of(scenario), lambda rank: order[rank])
    for name in ("nccl_trace_rank_{}", "host-{}.example.dump"):
        report = reported(written(tmp_path_factory.mktemp("f"), dumps, name))
        assert set(report.verdict.ranks) == {order[rank] for rank in CULPRITS}
        assert report.verdict.cause == "hang"


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("rank", [0, 9, 15])
@pytest.mark.parametrize("skew", [-0.03, 0.03, 3600.0])
def test_a_clock_that_is_off_changes_neither_verdict_nor_who_was_last(
    tmp_path: Path, scenario: str, rank: int, skew: float
) -> None:
    dumps = dumps_of(scenario)
    dumps[rank] = shifted(dumps[rank], skew)
    plain, other = (
        as_json(reported(FLIGHTS / scenario)),
        as_json(reported(written(tmp_path, dumps))),
    )
    assert other["verdict"]["ranks"] == plain["verdict"]["ranks"]
    if abs(skew) < 1:
        pairs = zip(plain["collectives"], other["collectives"], strict=True)
        told = [(one["last_rank"], two["last_rank"]) for one, two in pairs]
        assert all(one == two or None in {one, two} for one, two in told)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_clocks_of_another_speed_change_no_verdict(
    tmp_path: Path, scenario: str, factor: float
) -> None:
    dumps = {rank: shifted(dump, 0, factor) for rank, dump in dumps_of(scenario).items()}
    assert set(reported(written(tmp_path, dumps)).verdict.ranks) == CULPRITS


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("broken", [0, 7, 15])
def test_a_dump_that_is_cut_short_or_gone_leaves_the_others_to_tell(
    tmp_path: Path, scenario: str, broken: int
) -> None:
    folder = written(tmp_path, dumps_of(scenario))
    file = folder / f"trace_{broken}.pkl"
    file.write_bytes(file.read_bytes()[:-40])
    report = reported(folder)
    assert any(f"trace_{broken}.pkl" in note for note in report.steps.notes)
    file.unlink()
    for one in (report, reported(folder)):
        assert one.verdict.kind in {"rank", "unknown"}
        assert set(one.verdict.ranks) <= CULPRITS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_dump_of_one_rank_accuses_nobody(tmp_path: Path, scenario: str) -> None:
    dumps = dumps_of(scenario)
    for rank in (0, 9):
        folder = tmp_path / str(rank)
        folder.mkdir()
        assert reported(written(folder, {rank: dumps[rank]})).verdict.kind == "unknown"


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("seed", range(3))
def test_entries_that_are_missing_odd_or_in_another_order_change_no_verdict(
    tmp_path: Path, scenario: str, seed: int
) -> None:
    draw, dumps = random.Random(seed), dumps_of(scenario)
    for dump in dumps.values():
        draw.shuffle(dump["entries"])
        dump["entries"] += [{}, {"state": float("nan"), "collective_seq_id": "x"}]
    assert set(reported(written(tmp_path, dumps)).verdict.ranks) == CULPRITS


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
def test_dumps_tell_who_came_last_and_by_how_much(
    tmp_path: Path, *, skewed: int | None, ends: bool
) -> None:
    dumps = late_dumps(2, 0.3, ends=ends)
    if skewed is not None:
        dumps[skewed] = shifted(dumps[skewed], 0.03)
    told = as_json(reported(written(tmp_path, dumps)))
    assert len(told["collectives"]) == 40
    assert {item["last_rank"] for item in told["collectives"]} == {2}
    spreads = [item["start_spread_seconds"] for item in told["collectives"]]
    assert spreads == pytest.approx([0.3] * 40, abs=2e-3 if ends else 0.035)
    assert (told["alignment"]["residual_seconds"] is None) == (not ends)


def test_arrivals_that_clocks_cannot_tell_apart_have_no_order(tmp_path: Path) -> None:
    report = reported(written(tmp_path, late_dumps(2, 0.02, ends=False)))
    told = as_json(report)
    assert {item["last_rank"] for item in told["collectives"]} == {None}
    assert {item["start_spread_seconds"] for item in told["collectives"]} == {None}
    assert any("have no order" in note for note in told["notes"])


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
    for rank, told in events.items():
        about = {"rank": rank, "world_size": 4}
        text = json.dumps({"distributedInfo": about, "traceEvents": told})
        (folder / f"worker.{rank}.pt.trace.json").write_text(text)
    return folder


@pytest.mark.parametrize("late", [None, 1])
@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("rate", [-1e-4, 1e-4])
def test_the_drift_of_a_ranks_clock_is_found_and_taken_out(
    tmp_path: Path, *, late: int | None, rank: int, rate: float
) -> None:
    def clock(of: int, true: float) -> float:
        return true + (0.03 + rate * true if of == rank else 0.0)

    report = reported(kineto(tmp_path, clock, late))
    told = as_json(report)
    assert told["verdict"]["ranks"] == (() if late is None else (late,))
    drifts = told["alignment"]["drifts"]
    others = [drifts[f"rank {at}"] for at in range(4) if at != rank]
    assert drifts[f"rank {rank}"] - np.mean(others) == pytest.approx(rate, rel=0.05)
    assert told["alignment"]["residual_p95_seconds"] < 1e-3
    if late is not None:
        assert {c["last_rank"] for c in told["collectives"] if len(c["ranks"]) == 4} == {late}


@pytest.mark.parametrize("skewed", range(4))
def test_a_clock_is_told_as_far_ahead_as_it_is_though_small_groups_show_half(
    tmp_path: Path, skewed: int
) -> None:
    path = kineto(tmp_path, lambda of, true: true + 0.03 * (of == skewed))
    offsets = as_json(reported(path))["alignment"]["offsets"]
    others = [offsets[f"rank {at}"] for at in range(4) if at != skewed]
    assert offsets[f"rank {skewed}"] - np.median(others) == pytest.approx(0.03, abs=2e-4)


def profile(rank: int) -> str:
    return gzip.decompress(PROFILES[rank].read_bytes()).decode()


def told_of_profiles(folder: Path, texts: dict[str, str]) -> dict[str, Any]:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return as_json(reported(folder))


@pytest.mark.parametrize("names", [("a.json", "b.json"), ("host9_rank7.json", "host1_rank2.json")])
@pytest.mark.parametrize("swapped", [False, True])
def test_real_profiles_are_paired_by_the_rank_they_tell_and_not_by_their_name(
    tmp_path: Path, names: tuple[str, str], *, swapped: bool
) -> None:
    plain = as_json(reported(FIXTURES / "kineto-hta"))
    ranks = (1, 0) if swapped else (0, 1)
    texts = {
        name: re.sub(r'("rank": ?)\d+', rf"\g<1>{rank}", profile(at))
        for name, rank, at in zip(names, ranks, (0, 1), strict=True)
    }
    told = told_of_profiles(tmp_path, texts)
    assert told["verdict"]["kind"] == plain["verdict"]["kind"]
    mapped = {0: ranks[0], 1: ranks[1], None: None}
    assert [c["last_rank"] for c in told["collectives"]] == [
        mapped[c["last_rank"]] for c in plain["collectives"]
    ]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("skew", [-0.03, 0.03])
def test_real_profiles_by_a_clock_that_is_off_tell_the_same(
    tmp_path: Path, rank: int, skew: float
) -> None:
    def moved(match: re.Match[str]) -> str:
        return f"{match[1]}{float(match[2]) + skew * 1e6:.3f}"

    plain = as_json(reported(FIXTURES / "kineto-hta"))
    texts = {f"{at}.json": profile(at) for at in (0, 1)}
    texts[f"{rank}.json"] = re.sub(r'("ts": ?)(\d+(?:\.\d+)?)', moved, profile(rank))
    told = told_of_profiles(tmp_path, texts)
    assert told["verdict"]["kind"] == plain["verdict"]["kind"]
    assert [c["last_rank"] for c in told["collectives"]] == [
        c["last_rank"] for c in plain["collectives"]
    ]
    spreads = [[c["start_spread_seconds"] for c in one["collectives"]] for one in (told, plain)]
    assert spreads[0] == pytest.approx(spreads[1], abs=1e-5)


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_of_profiles_one_of_which_breaks_off_the_other_is_still_read(
    tmp_path: Path, share: float
) -> None:
    text = profile(1)
    told = told_of_profiles(
        tmp_path, {"0.json": profile(0), "1.json": text[: int(share * len(text))]}
    )
    assert told["verdict"]["kind"] == "unknown"
    assert any("1.json is cut short" in note for note in told["notes"])
    assert told["missing_ranks"]
