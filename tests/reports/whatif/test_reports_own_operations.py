"""Operation rows of our own: sharded, tensor-parallel and expert-parallel jobs are replayed too."""

from collections.abc import Callable
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
        """Written, read and replayed."""
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
def test_a_slow_rank_is_named_in_every_way_of_parallelism(
    tmp_path: Path, build: JobBuilder, meta: str
) -> None:
    coordinates = (3, 1) if build is tensor_parallel else (3, 0)
    replayed = build({coordinates: 1.5}).judged(tmp_path, meta)
    assert replayed.what_if is not None, replayed.why_not
    assert replayed.what_if.simulation_error_ratio < 0.01
    rank = 7 if build is tensor_parallel else 3
    assert (replayed.verdict.kind, replayed.verdict.ranks) == ("rank", (rank,))


@pytest.mark.parametrize(
    ("build", "meta"), [(sharded, ""), (tensor_parallel, ""), (expert_parallel, EXPERTS)]
)
def test_nobody_is_named_where_nobody_is_slow(tmp_path: Path, build: JobBuilder, meta: str) -> None:
    replayed = build({}).judged(tmp_path, meta)
    assert replayed.verdict.kind == "nobody", replayed.verdict.evidence
