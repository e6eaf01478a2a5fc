"""Flight Recorder dumps get the same verdict however they were written.

Ranks with other numbers, files with other names, clocks that are off or of another speed, dumps
cut short or missing, entries in another order.
"""

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_reports.readers.unpickled import plain_values

from ..matrices import matrix
from ..report_command import reported
from ..synthetic_job import published

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
def test_dumps_tell_who_came_last_and_by_how_much(
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
