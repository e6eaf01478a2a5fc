"""Public recordings get the verdict that is true of them, damaged ones one sentence."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..report_command import reported
from ..synthetic_job import published

FIXTURES = Path(__file__).parents[2] / "fixtures"
SERIES = FIXTURES / "megatron-iteration-times"


@pytest.mark.parametrize(
    ("slow", "kind"), [((0, 1, 2, 3, 4), "rank"), (tuple(range(10)), "workload"), ((), "nobody")]
)
def test_half_of_the_workers_can_be_slow_and_all_of_them_are_the_workload(
    tmp_path: Path, slow: tuple[int, ...], kind: str
) -> None:
    draw = np.random.default_rng(5)
    seconds = draw.normal(1.0, 0.02, (10, 200))
    seconds[list(slow), 100:] *= 1.5
    rows = [f"{w},{s},{seconds[w, s]}" for w in range(10) for s in range(200)]
    path = tmp_path / "t.csv"
    path.write_text("rank,step,step_seconds\n" + "\n".join(rows))
    verdict = reported(path).verdict
    assert verdict.kind == kind
    assert set(verdict.ranks) == (set(slow) if kind == "rank" else set())


def test_the_series_of_a_whole_job_tells_its_steps_and_names_no_rank() -> None:
    clean, restarted = (reported(path) for path in sorted(SERIES.glob("*.gz")))
    assert clean.summary.count == 1999
    assert max(s.ratio for s in clean.summary.spikes if s.index) < 1.6
    assert restarted.summary.count == 4538
    assert restarted.summary.median_seconds == pytest.approx(8.961, abs=1e-3)
    assert sum(s.ratio > 2 for s in restarted.summary.spikes) == 7
    assert clean.verdict.ranks == restarted.verdict.ranks == ()


def test_a_rank_that_left_no_dump_is_shown_and_not_named(tmp_path: Path) -> None:
    def entry(state: str, sequence: int) -> dict[str, Any]:
        return {
            "process_group": ["0", "default_pg"],
            "pg_id": 0,
            "collective_seq_id": sequence,
            "profiling_name": "nccl:all_reduce",
            "state": state,
        }

    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    dump = {"version": "2.9", "pg_config": config, "pg_status": {}}
    entries = [entry("completed", 4), entry("scheduled", 5)]
    for rank in (0, 1, 3):
        (tmp_path / f"d_{rank}").write_bytes(pickle.dumps(dump | {"entries": entries}))
    verdict = reported(tmp_path).verdict
    assert (verdict.kind, verdict.ranks) == ("unknown", ())
    assert "Rank 2 left no dump" in verdict.evidence[0]
    (tmp_path / "d_2").write_bytes(pickle.dumps(dump | {"entries": [entry("completed", 4)]}))
    assert reported(tmp_path).verdict.ranks == (2,)
    odd = entry("scheduled", 5) | {"profiling_name": "nccl:broadcast"}
    (tmp_path / "d_2").write_bytes(pickle.dumps(dump | {"entries": [odd]}))
    assert reported(tmp_path).verdict.cause == "mismatched collectives"


def test_a_send_and_its_receive_are_no_mismatched_collectives(tmp_path: Path) -> None:
    config = {"0": {"name": "0", "desc": "pipeline", "ranks": "[0, 1, 2]"}}
    names = {0: "nccl:send 0->1", 1: "nccl:recv 1<-0", 2: "nccl:recv 2<-1"}
    for rank, name in names.items():
        # Some recorders write no ``is_p2p``; the name of the operation tells it too.
        entry = {"process_group": ["0", ""], "collective_seq_id": 5, "profiling_name": name}
        dump = {"pg_config": config, "pg_status": {}, "entries": [entry | {"state": "scheduled"}]}
        (tmp_path / f"d_{rank}").write_bytes(pickle.dumps(dump))
    verdict = reported(tmp_path).verdict
    assert verdict.cause != "mismatched collectives"
    assert verdict.ranks == ()


def kineto(folder: Path, *, old: bool, late: int | None, skew: dict[int, float]) -> None:
    """Traces of four ranks over 30 steps; one of them may arrive 20 ms late."""
    name = "ncclKernel_AllReduce_RING_LL_Sum_float(x)" if old else "ncclDevKernel_AllReduce_Sum(x)"
    draw = np.random.default_rng(1)
    arrivals = 60_000 + draw.uniform(0, 500, (4, 30))
    if late is not None:
        arrivals[late] += 20_000
    for rank in range(4):
        events: list[dict[str, Any]] = []
        clock = 1.7e15 + skew.get(rank, 0.0) * 1e6
        for step in range(30):
            begin, joint_end = clock + step * 100_000, arrivals[:, step].max() + 5_000
            spent = joint_end - arrivals[rank, step]
            events += [
                {"ph": "X", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 99_000},
                {"ph": "X", "name": name, "ts": begin + arrivals[rank, step], "dur": spent},
            ]
        trace = {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": events}
        with gzip.open(folder / f"host{rank}.json.gz", "wt") as out:
            json.dump(trace, out)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("late", [None, 0, 2])
@pytest.mark.parametrize("skewed", [None, 0, 2])
def test_profiler_traces_name_who_began_its_collectives_late_on_any_clock(
    tmp_path: Path, *, old: bool, late: int | None, skewed: int | None
) -> None:
    kineto(tmp_path, old=old, late=late, skew={} if skewed is None else {skewed: 0.03})
    report = reported(tmp_path)
    assert report.verdict.kind == ("nobody" if late is None else "rank")
    assert report.verdict.ranks == (() if late is None else (late,))
    payload = published(report)
    assert {c["kind"] for c in payload["collectives"]} == {"all_reduce"}
    assert len(payload["collectives"]) == 30
    if late is not None:
        assert {c["last_rank"] for c in payload["collectives"]} == {late}
        spreads = [c["start_spread_seconds"] for c in payload["collectives"]]
        assert spreads == pytest.approx([0.0202] * 30, abs=1e-3)
    if skewed is not None:
        offsets = payload["alignment"]["offsets"]
        ahead = offsets[f"rank {skewed}"] - offsets[f"rank {(skewed + 1) % 4}"]
        assert ahead == pytest.approx(0.03, abs=1e-4)


def test_two_ranks_of_a_real_profile_are_paired_and_nobody_is_named() -> None:
    payload = published(reported(FIXTURES / "kineto-hta"))
    assert payload["steps"]["count"] == 2
    assert len(payload["collectives"]) == 10
    assert payload["verdict"]["kind"] == "unknown"
    assert payload["alignment"]["residual_seconds"] is not None
