"""What cannot be read is one sentence and exit 2; what is too little to judge is told as that.

Truncated and hostile files by the command line, a bomb a kind in a process of bounded memory, and
of every kind a recording with one rank, with steps missing, with NaN, with clocks that jump.
"""

import gzip
import json
import pickle
import resource
import subprocess
import sys
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
from lockstep_reports.score import score
from lockstep_reports.verdict.judge import judge

from .synthetic_job import Slow, SyntheticJob
from .synthetic_trace import SyntheticTrace

FIXTURES = Path(__file__).parents[1] / "fixtures"
DUMP = FIXTURES / "flight-recorder-nvrx/lock_gil_1st/_dump_0"
TRACE = FIXTURES / "straggler-bytedance/trace-ST.parquet"
PROFILE = next((FIXTURES / "kineto-hta").glob("*rank-0*"))
MOST_BYTES = 3 << 30


class _Hostile:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.place,))


def hostile(folder: Path) -> bytes:
    dump = {"pg_config": {}, "pg_status": {}, "entries": [_Hostile(folder / "never-made")]}
    return pickle.dumps(dump)


def cut(path: Path, share: float) -> Callable[[Path], bytes]:
    data = path.read_bytes()
    return lambda _: data[: int(share * len(data))]


SERIES = b'{"iteration-time": {"start_step": 1, "values": {'
BAD: dict[str, Callable[[Path], bytes]] = {
    "hostile dump": hostile,
    "cut dump": cut(DUMP, 0.7),
    "hostile dump in gzip": lambda folder: gzip.compress(hostile(folder)),
    "dump as cut JSON": lambda _: b'{"pg_config": {"0": {"ranks": "[0, 1]"',
    "dump nested too deeply": lambda _: b'{"pg_config": ' + b"[" * 200_000,
    "cut profile": cut(PROFILE, 0.5),
    "cut plain profile": lambda _: gzip.decompress(PROFILE.read_bytes())[:300_000],
    "cut Parquet": cut(TRACE, 0.9),
    "Parquet that is none": lambda _: b"PAR1" + bytes(range(256)) * 40 + b"PAR1",
    "cut series": lambda _: SERIES + b'"1": 0.5, "2"',
    "series without a number": lambda _: SERIES + b'"1": "nan", "2": "nan"}}}',
    "workers without a number": lambda _: b"worker,time,batch_time\n0,1,\n1,1,nan\n",
    "workers without rows": lambda _: b"worker,time,batch_time\n",
    "operations without rows": lambda _: b"optype,start_ts,duration\n",
    "nothing": lambda _: b"",
    "zeros": lambda _: bytes(4096),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_one_sentence_and_exit_2(tmp_path: Path, name: str) -> None:
    path = tmp_path / "thing_3"
    path.write_bytes(BAD[name](tmp_path))
    result = CliRunner().invoke(report, [str(path), "--json", "-"])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    said = result.stderr.partition("Error: ")[2].strip()
    assert len(said.splitlines()) == 1, said
    assert str(tmp_path) in said
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
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(BOMBS[name])
        for _ in range(300):
            file.write(b"0" * (1 << 20))
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MOST_BYTES}, {MOST_BYTES}));"
        "from lockstep_reports.command import report; report()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), "--json", "-"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr[-2000:]
    assert len(done.stderr.partition("Error: ")[2].strip().splitlines()) == 1
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != MOST_BYTES


def told(path: Path) -> dict[str, Any]:
    result = CliRunner().invoke(report, [str(path), "--json", "-"])
    assert result.exit_code == 0, result.output
    made: dict[str, Any] = json.loads(result.stdout)
    return made


def one_worker(folder: Path) -> Path:
    path = folder / "one.csv"
    path.write_text("worker,step,step_seconds\n" + "".join(f"0,{at},1.0\n" for at in range(90)))
    return path


def one_operation_rank(folder: Path) -> Path:
    path = folder / "one.parquet"
    pq.write_table(SyntheticTrace(replicas=1, stages=1).table(), path)
    return path


def one_dump(folder: Path) -> Path:
    path = folder / "_dump_0"
    path.write_bytes(DUMP.read_bytes())
    return path


def one_profile(folder: Path) -> Path:
    path = folder / "rank0.json.gz"
    path.write_bytes(PROFILE.read_bytes())
    return path


@pytest.mark.parametrize("made", [one_worker, one_dump, one_profile])
def test_one_rank_alone_cannot_be_judged(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    read = told(made(tmp_path))
    assert (read["verdict"]["kind"], read["verdict"]["ranks"]) == ("unknown", [])
    assert read["verdict"]["evidence"]


def test_one_rank_of_operations_is_replayed_and_nobody_named(tmp_path: Path) -> None:
    read = told(one_operation_rank(tmp_path))
    assert (read["verdict"]["kind"], read["verdict"]["ranks"]) == ("nobody", [])


def test_one_page_alone_cannot_be_judged(page_root: Path) -> None:
    folder = SyntheticJob(ranks=4, job_id="alone").write(page_root, skip=(0, 1, 3))
    read = told(folder)
    assert read["verdict"]["kind"] == "unknown"
    assert read["missing_ranks"] == [0, 1, 3]


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_steps_that_are_missing_on_some_ranks_hide_nobody_who_is_slow(share: float) -> None:
    draw = np.random.default_rng(4)
    steps = SyntheticJob(ranks=8, num_steps=400, slow=(Slow(rank=5),)).steps()
    gone = draw.random(steps.seconds.shape) < share
    holes = replace(
        steps,
        seconds=np.where(gone, np.nan, steps.seconds),
        phases={name: np.where(gone, np.nan, of) for name, of in steps.phases.items()},
        last_arrival=np.where(gone, np.nan, steps.last_arrival),
    )
    assert judge(holes, score(holes))[0].ranks == (5,)


@pytest.mark.parametrize("slow", [(), (Slow(rank=1),)])
@pytest.mark.parametrize("jump", [-0.03, 0.03, 3600.0])
def test_a_clock_that_jumps_changes_no_verdict_of_pages(
    slow: tuple[Slow, ...], jump: float
) -> None:
    steps = SyntheticJob(slow=slow).steps()
    moved = np.zeros_like(steps.start)
    moved[2, 120:] = jump
    jumped = replace(
        steps,
        start=steps.start + moved,
        first_arrival=steps.first_arrival + moved,
        last_arrival=steps.last_arrival + moved,
    )
    one, other = judge(steps, score(steps))[0], judge(jumped, score(jumped))[0]
    assert (one.kind, one.ranks, one.phase) == (other.kind, other.ranks, other.phase)
    assert one.ranks == tuple(of.rank for of in slow)


def test_where_a_profiles_clock_has_jumped_nobody_is_told_as_last(tmp_path: Path) -> None:
    name = "ncclDevKernel_AllReduce_Sum(x)"
    for rank in range(2):
        events = []
        for at in range(60):
            jump = 5.0 if rank == 1 and at >= 40 else 0.0
            begin = at + 0.2 * (rank == 0) + jump
            spent = at + 0.25 + jump - begin
            events.append({"ph": "X", "name": name, "ts": begin * 1e6, "dur": spent * 1e6})
        text = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"{rank}.json").write_text(json.dumps(text))
    read = told(tmp_path)
    assert read["verdict"]["ranks"] == [0]
    last = [item["last_rank"] for item in read["collectives"]]
    assert sorted(map(str, set(last))) == ["0", "None"]
    assert last.count(0) == 40
