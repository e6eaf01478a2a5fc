"""Operation rows of our own: sharded, tensor-parallel and expert-parallel jobs are replayed too."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockstep_reports.readers.traces import read_trace
from lockstep_reports.whatif.verdict import Replayed, replay_trace

_COMPUTE = {"forward-compute": 0.02, "backward-compute": 0.04, "optimizer": 0.01}
_LAYERS = 3


class Job:
    """Ranks = replicas x shards; every collective ends for its group together."""

    def __init__(self, replicas: int, shards: int, slow: dict[tuple[int, int], float]) -> None:
        self.shape = (replicas, shards, 8)
        self.draw = np.random.default_rng(1)
        self.factor = np.ones((replicas, shards, 1))
        for coordinates, times in slow.items():
            self.factor[coordinates] = times
        self.now = np.zeros(self.shape)
        self.rows: list[tuple[str, int, np.ndarray, np.ndarray]] = []
        self.count: dict[str, int] = {}

    def add(self, name: str, end: np.ndarray) -> None:
        """Writes an operation from now to its end."""
        order = self.count.get(name, 0)
        self.count[name] = order + 1
        self.rows.append((name, order, self.now, end))
        self.now = end

    def compute(self, name: str) -> None:
        """Work of every rank."""
        noise = 1 + 0.01 * np.abs(self.draw.standard_normal(self.shape))
        self.add(name, self.now + _COMPUTE[name] * noise * self.factor)

    def collective(self, name: str, axis: int, size: int = 0) -> None:
        """A collective of neighbours along an axis: 0 for replicas, 1 for shards."""
        now = self.now
        if size:
            now = now.reshape(-1, size, *self.shape[1:]).max(axis=1).repeat(size, axis=0)
        else:
            now = np.broadcast_to(now.max(axis=axis, keepdims=True), self.shape)
        self.add(name, now + 0.005)

    def judged(self, folder: Path, meta: str = "") -> Replayed:
        replicas, shards, steps = self.shape
        replica, shard, step = (at.ravel() for at in np.indices(self.shape))
        tables = []
        for name, order, begin, end in self.rows:
            count = replicas * shards * steps
            columns = {
                "dp_rank": replica,
                "tp_rank": shard,
                "stage": np.zeros(count, np.int64),
                "rank": replica * shards + shard,
                "step": step,
                "optype": [name] * count,
                "start_ts": begin.ravel(),
                "duration": (end - begin).ravel(),
                "seq_id": np.full(count, order),
            }
            tables.append(pa.table(columns))
        pq.write_table(pa.concat_tables(tables), folder / "trace-own.parquet")
        if meta:
            (folder / "meta-own.yaml").write_text(meta)
        return replay_trace(read_trace(folder / "trace-own.parquet"))


def sharded(slow: dict[tuple[int, int], float]) -> Job:
    job = Job(8, 1, slow)
    for computation in ("forward-compute", "backward-compute"):
        for _ in range(_LAYERS):
            job.collective("params-sync", 0)
            job.compute(computation)
            if computation == "backward-compute":
                job.collective("grads-sync", 0)
    job.compute("optimizer")
    return job


def tensor_parallel(slow: dict[tuple[int, int], float]) -> Job:
    job = Job(4, 2, slow)
    for computation in ("forward-compute", "backward-compute"):
        for _ in range(_LAYERS):
            job.compute(computation)
            job.collective("tensor-all-reduce", 1)
    job.collective("grads-sync", 0)
    job.compute("optimizer")
    return job


def expert_parallel(slow: dict[tuple[int, int], float]) -> Job:
    job = Job(8, 1, slow)
    for computation in ("forward-compute", "backward-compute"):
        for _ in range(_LAYERS):
            job.collective("all_to_all", 0, size=4)
            job.compute(computation)
            job.collective("all_to_all", 0, size=4)
    job.collective("grads-sync", 0)
    job.compute("optimizer")
    return job


JobBuilder = Callable[[dict[tuple[int, int], float]], Job]
EXPERTS = "dp_size: 8\nep_size: 4\n"


@pytest.mark.parametrize(
    ("build", "meta"), [(sharded, ""), (tensor_parallel, ""), (expert_parallel, EXPERTS)]
)
def test_a_slow_rank_alone_is_named_in_every_way_of_parallelism(
    tmp_path: Path, build: JobBuilder, meta: str
) -> None:
    even = build({}).judged(tmp_path, meta)
    assert even.verdict.kind == "nobody", even.verdict.evidence
    coordinates = (3, 1) if build is tensor_parallel else (3, 0)
    replayed = build({coordinates: 1.5}).judged(tmp_path, meta)
    assert replayed.what_if is not None, replayed.why_not
    assert replayed.what_if.simulation_error_ratio < 0.01
    rank = 7 if build is tensor_parallel else 3
    assert (replayed.verdict.kind, replayed.verdict.ranks) == ("rank", (rank,))


STAGES, CHUNKS, STEPS = 2, 2, 4
_ORDER = {
    0: ["F00", "F01", "F10", "F11", "B10", "B11", "B00", "B01"],
    1: ["F00", "F01", "F10", "B10", "F11", "B11", "B00", "B01"],
}
# Begins of stage 0 and 1 in the order above, worked out by hand for each pair of durations.
EVEN: dict[int, tuple[int, ...]] = {0: (0, 1, 2, 3, 6, 9, 11, 13), 1: (1, 2, 3, 4, 6, 7, 9, 11)}
HEAVY: dict[int, tuple[int, ...]] = {
    0: (0, 1, 4, 7, 14, 21, 25, 29),
    1: (1, 4, 7, 10, 14, 17, 21, 25),
}


@dataclass(frozen=True)
class Computed:
    direction: str
    stage: int
    chunk: int
    batch: int
    begin: float
    end: float

    @property
    def model_chunk(self) -> int:
        """Place in the model, from its first layers to its last."""
        return self.chunk * STAGES + self.stage


def computed(begins: dict[int, tuple[int, ...]], spent: dict[str, float]) -> list[Computed]:
    """All computations of a step; ``spent`` is seconds by way and stage, such as F1."""
    return [
        Computed(
            direction=what[0],
            stage=stage,
            chunk=int(what[1]),
            batch=int(what[2]),
            begin=begin,
            end=begin + spent[f"{what[0]}{stage}"],
        )
        for stage, order in _ORDER.items()
        for what, begin in zip(order, begins[stage], strict=True)
    ]


def rows_of(ops: list[Computed], *, no_ops: bool) -> list[tuple[str, int, int, float, float]]:
    """Computations, sends and receives as (type, stage, chunk, begin, end)."""
    names = {"F": "forward", "B": "backward"}
    rows = [(f"{names[op.direction]}-compute", op.stage, op.chunk, op.begin, op.end) for op in ops]
    by_chunk = {(op.direction, op.model_chunk, op.batch): op for op in ops}
    before = {
        (op.direction, op.model_chunk, op.batch): earlier.end
        for stage in range(STAGES)
        for earlier, op in zip(
            [o for o in ops if o.stage == stage], [o for o in ops if o.stage == stage][1:],
            strict=False,
        )
    }  # fmt: skip
    for op in ops:
        towards = 1 if op.direction == "F" else -1
        peer = by_chunk.get((op.direction, op.model_chunk + towards, op.batch))
        name = names[op.direction]
        if peer is not None:
            posted = before.get((peer.direction, peer.model_chunk, peer.batch), 0.0)
            done = max(op.end, posted)
            rows.append((f"{name}-send", op.stage, -1, op.end, done))
            rows.append((f"{name}-recv", peer.stage, -1, posted, done))
        elif no_ops:
            rows.append((f"{name}-send", op.stage, -1, op.end, op.end))
        if no_ops and (op.direction, op.model_chunk - towards, op.batch) not in by_chunk:
            rows.append((f"{name}-recv", op.stage, -1, op.begin, op.begin))
    return rows


def replayed(
    folder: Path, begins: dict[int, tuple[int, ...]], spent: dict[str, float], *, no_ops: bool
) -> Replayed:
    lines = ["dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc"]
    rows = sorted(rows_of(computed(begins, spent), no_ops=no_ops), key=lambda row: row[3:])
    for step in range(STEPS):
        seen: dict[tuple[str, int], int] = {}
        for name, stage, chunk, begin, end in rows:
            order = seen.setdefault((name, stage), 0)
            seen[name, stage] += 1
            model_chunk = chunk * STAGES + stage if chunk >= 0 else -1
            lines.append(
                f"0,{stage},{stage},{step},{name},{begin},{end - begin},{order},{chunk},-1,"
                f"{model_chunk}"
            )
    path = folder / "interleaved.csv"
    path.write_text("\n".join(lines) + "\n")
    (folder / "meta-interleaved.yaml").write_text("dp_size: 1\npp_size: 2\nvpp_size: 2\n")
    return replay_trace(read_trace(path))


@pytest.mark.parametrize("no_ops", [True, False])
def test_chunks_that_are_alike_take_as_long_as_worked_out(tmp_path: Path, *, no_ops: bool) -> None:
    replay = replayed(tmp_path, EVEN, {"F0": 1, "F1": 1, "B0": 2, "B1": 2}, no_ops=no_ops)
    assert replay.what_if is not None, replay.why_not
    assert replay.what_if.seconds == pytest.approx([15.0] * STEPS)
    assert replay.what_if.slowdown == pytest.approx(1.0)
    assert replay.what_if.simulation_error_ratio == pytest.approx(0.0, abs=1e-9)
    assert replay.verdict.kind == "nobody"


@pytest.mark.parametrize("no_ops", [True, False])
def test_a_heavy_last_stage_costs_what_was_worked_out(tmp_path: Path, *, no_ops: bool) -> None:
    replay = replayed(tmp_path, HEAVY, {"F0": 1, "F1": 3, "B0": 2, "B1": 4}, no_ops=no_ops)
    what_if = replay.what_if
    assert what_if is not None, replay.why_not
    assert what_if.recorded_seconds == pytest.approx([31.0] * STEPS)
    assert what_if.seconds == pytest.approx([31.0] * STEPS)
    # Ideal: forwards of (1 + 3) / 2, backwards of (2 + 4) / 2.
    assert what_if.ideal_seconds == pytest.approx([5 * 2.0 + 5 * 3.0] * STEPS)
    assert what_if.slowdown == pytest.approx(31 / 25)
    assert what_if.stages[1].without_seconds == pytest.approx(23.0)
    assert what_if.stages[1].only_seconds == pytest.approx(33.0)
    assert what_if.m_s == pytest.approx((31 - 23) / (31 - 25))
    assert (replay.verdict.kind, replay.verdict.group, replay.verdict.ranks) == (
        "group",
        "stage 1",
        (1,),
    )
