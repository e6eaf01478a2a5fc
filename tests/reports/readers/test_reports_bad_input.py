"""Unreadable input gives one sentence and exit 2; too little input gives the verdict unknown."""

import gzip
import json
import pickle
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lockstep_reports.command import report
from lockstep_reports.readers.unpickled import plain_values
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge

from ..report_command import report_json, reported, run_in_bounded_memory
from ..synthetic_job import Slow, SyntheticJob, published
from ..synthetic_trace import SyntheticTrace

FIXTURES = Path(__file__).parents[2] / "fixtures"
DUMP = FIXTURES / "flight-recorder-nvrx/lock_gil_1st/_dump_0"
TRACE = FIXTURES / "straggler-bytedance/trace-ST.parquet"
PROFILE = next((FIXTURES / "kineto-hta").glob("*rank-0*"))
MOST_BYTES = 3 << 30


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def hostile(folder: Path) -> bytes:
    dump = {"pg_config": {}, "pg_status": {}, "entries": [_Hostile(folder / "never-made")]}
    return pickle.dumps(dump)


def truncated(path: Path, share: float) -> Callable[[Path], bytes]:
    data = path.read_bytes()
    return lambda _: data[: int(share * len(data))]


SERIES = b'{"iteration-time": {"start_step": 1, "values": {'
BAD: dict[str, Callable[[Path], bytes]] = {
    "hostile dump": hostile,
    "cut dump": truncated(DUMP, 0.7),
    "hostile dump in gzip": lambda folder: gzip.compress(hostile(folder)),
    "dump as cut JSON": lambda _: b'{"pg_config": {"0": {"ranks": "[0, 1]"',
    "dump nested too deeply": lambda _: b'{"pg_config": ' + b"[" * 200_000,
    "cut profile": truncated(PROFILE, 0.5),
    "cut plain profile": lambda _: gzip.decompress(PROFILE.read_bytes())[:300_000],
    "cut Parquet": truncated(TRACE, 0.9),
    "Parquet that is none": lambda _: b"PAR1" + bytes(range(256)) * 40 + b"PAR1",
    "cut series": lambda _: SERIES + b'"1": 0.5, "2"',
    "series without a number": lambda _: SERIES + b'"1": "nan", "2": "nan"}}}',
    "workers without a number": lambda _: b"worker,time,batch_time\n0,1,\n1,1,nan\n",
    "workers without rows": lambda _: b"worker,time,batch_time\n",
    "operations without rows": lambda _: b"optype,start_ts,duration\n",
    "kernel log": lambda _: b"[   12.000001] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off\n",
    "nothing": lambda _: b"",
    "zeros": lambda _: bytes(4096),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_one_sentence_and_exit_2(tmp_path: Path, name: str) -> None:
    path = tmp_path / "recording_3"
    path.write_bytes(BAD[name](tmp_path))
    result = CliRunner().invoke(report, [str(path), "--json", "-"])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    message = result.stderr.partition("Error: ")[2].strip()
    assert len(message.splitlines()) == 1, message
    assert str(tmp_path) in message
    assert not (tmp_path / "never-made").exists()


def test_the_hostile_pickle_would_run_were_it_loaded(tmp_path: Path) -> None:
    data = hostile(tmp_path)
    with pytest.raises(ValueError, match="more than plain values"):
        plain_values(data)
    pickle.loads(data)  # noqa: S301  # made above, to prove that it is hostile
    assert (tmp_path / "never-made").exists()


BOMBS = {
    "dump": b'{"pg_config": "' + b" " * 40,
    "profile": b'{"traceEvents": [{"name": "',
    "series": SERIES + b'"1": ',
    "Parquet": b"PAR1",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bomb_1.gz"
    # Members of gzip in a row are one file; one of 1 MiB, 300 times, is written in no time.
    path.write_bytes(gzip.compress(BOMBS[name]) + 300 * gzip.compress(b"0" * (1 << 20)))
    done = run_in_bounded_memory(path, MOST_BYTES, 100)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr[-2000:]
    assert len(done.stderr.partition("Error: ")[2].strip().splitlines()) == 1
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != MOST_BYTES


def write_worker(folder: Path) -> Path:
    path = folder / "one.csv"
    path.write_text("worker,step,step_seconds\n" + "".join(f"0,{step},1.0\n" for step in range(90)))
    return path


def write_operation_rank(folder: Path) -> Path:
    path = folder / "one.parquet"
    pq.write_table(SyntheticTrace(replicas=1, stages=1).table(), path)
    return path


def write_dump(folder: Path) -> Path:
    path = folder / "_dump_0"
    path.write_bytes(DUMP.read_bytes())
    return path


def write_profile(folder: Path) -> Path:
    path = folder / "rank0.json.gz"
    path.write_bytes(PROFILE.read_bytes())
    return path


@pytest.mark.parametrize("write", [write_worker, write_dump, write_profile])
def test_one_rank_alone_cannot_be_judged(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    payload = report_json(write(tmp_path))
    assert (payload["verdict"]["kind"], payload["verdict"]["ranks"]) == ("unknown", [])
    assert payload["verdict"]["evidence"]


def test_one_rank_of_operations_is_replayed_and_nobody_named(tmp_path: Path) -> None:
    payload = report_json(write_operation_rank(tmp_path))
    assert (payload["verdict"]["kind"], payload["verdict"]["ranks"]) == ("nobody", [])


def test_one_page_alone_cannot_be_judged(page_root: Path) -> None:
    folder = SyntheticJob(ranks=4, job_id="alone").write(page_root, skip=(0, 1, 3))
    payload = report_json(folder)
    assert payload["verdict"]["kind"] == "unknown"
    assert payload["missing_ranks"] == [0, 1, 3]


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_steps_that_are_missing_on_some_ranks_hide_nobody_who_is_slow(share: float) -> None:
    generator = np.random.default_rng(4)
    steps = SyntheticJob(ranks=8, num_steps=400, slow=(Slow(rank=5),)).steps()
    is_missing = generator.random(steps.seconds.shape) < share
    holes = replace(
        steps,
        seconds=np.where(is_missing, np.nan, steps.seconds),
        phases={
            name: np.where(is_missing, np.nan, values) for name, values in steps.phases.items()
        },
        last_arrival=np.where(is_missing, np.nan, steps.last_arrival),
    )
    assert judge(holes, score(holes))[0].ranks == (5,)


@pytest.mark.parametrize("slow", [(), (Slow(rank=1),)])
@pytest.mark.parametrize("jump", [-0.03, 0.03, 3600.0])
def test_a_jumping_clock_changes_no_verdict_of_pages(slow: tuple[Slow, ...], jump: float) -> None:
    steps = SyntheticJob(slow=slow).steps()
    shift = np.zeros_like(steps.start)
    shift[2, 120:] = jump
    jumped = replace(steps, start=steps.start + shift, last_arrival=steps.last_arrival + shift)
    before, after = judge(steps, score(steps))[0], judge(jumped, score(jumped))[0]
    assert (before.kind, before.ranks, before.phase) == (after.kind, after.ranks, after.phase)
    assert before.ranks == tuple(slow_rank.rank for slow_rank in slow)


def test_where_a_profiles_clock_has_jumped_nobody_is_reported_as_last(tmp_path: Path) -> None:
    name = "ncclDevKernel_AllReduce_Sum(x)"
    for rank in range(2):
        events = []
        for step in range(60):
            jump = 5.0 if rank == 1 and step >= 40 else 0.0
            begin = step + 0.2 * (rank == 0) + jump
            duration = step + 0.25 + jump - begin
            events.append({"ph": "X", "name": name, "ts": begin * 1e6, "dur": duration * 1e6})
        text = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"{rank}.json").write_text(json.dumps(text))
    payload = report_json(tmp_path)
    assert payload["verdict"]["ranks"] == [0]
    last = [item["last_rank"] for item in payload["collectives"]]
    assert sorted(map(str, set(last))) == ["0", "None"]
    assert last.count(0) == 40


RECORDED_SERIES = FIXTURES / "megatron-iteration-times"


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
    clean, restarted = (reported(path) for path in sorted(RECORDED_SERIES.glob("*.gz")))
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
