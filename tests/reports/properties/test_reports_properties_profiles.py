"""Profiler traces get the same verdict however they were written.

Ranks with other numbers, files with other names, clocks that are off or drift, files cut short.
"""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..matrices import matrix
from ..report_command import reported
from ..synthetic_job import published

FIXTURES = Path(__file__).parents[2] / "fixtures"
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
def test_of_profiles_one_of_which_breaks_off_the_other_is_still_read(
    tmp_path: Path, share: float
) -> None:
    text = profile(1)
    payload = payload_of(tmp_path, {"0.json": profile(0), "1.json": text[: int(share * len(text))]})
    assert payload["verdict"]["kind"] == "unknown"
    assert any("1.json is cut short" in note for note in payload["notes"])
    assert payload["missing_ranks"]
