"""Operation traces whose truth is known: a 1F1B pipeline, each clock by the schedule alone."""

from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[np.float64]
FORWARD_SECONDS, BACKWARD_SECONDS = 0.05, 0.1
_TRANSFER_SECONDS = 5e-4
_GATHER_SECONDS, _SCATTER_SECONDS, _CLIP_SECONDS = 0.02, 0.04, 0.002
_OPTIMIZER_SECONDS = 0.03


@dataclass(frozen=True, kw_only=True)
class SyntheticTrace:
    """A job of ``replicas`` x ``stages`` ranks; rank = stage x replicas + replica.

    Attributes:
        slow: how many times longer a rank computes, by rank.
        stage_weight: the same for whole stages, by stage.
        batch_spread: how much micro-batches differ, as if sequences were uneven.
        jitter: independent noise of every operation, relative.
        clock_skew: seconds by which a rank's clock is ahead, by rank.
        ranks_on_node: with it, rows name the node of their rank.
    """

    replicas: int = 4
    stages: int = 4
    batches: int = 8
    num_steps: int = 10
    slow: dict[int, float] = field(default_factory=dict)
    stage_weight: dict[int, float] = field(default_factory=dict)
    batch_spread: float = 0.0
    jitter: float = 0.01
    clock_skew: dict[int, float] = field(default_factory=dict)
    ranks_on_node: int = 0
    scale: float = 1.0
    seed: int = 0

    def table(self) -> pa.Table:
        """The rows, with the columns of the published traces."""
        return _Recorder(self).run()


class _Recorder:
    """One run of the schedule; times are arrays [replicas x steps]."""

    def __init__(self, job: SyntheticTrace) -> None:
        self.job = job
        self.draw = np.random.default_rng(job.seed)
        self.shape = (job.replicas, job.num_steps)
        self.rows: list[tuple[str, int, int, int, Array, Array]] = []
        lengths = self.draw.lognormal(0, 1, (job.batches, *self.shape)) - 1
        self.length = np.maximum(0.3, 1 + job.batch_spread * lengths)
        ranks = np.arange(job.replicas)
        self.factor = [
            np.array([job.slow.get(int(stage * job.replicas + r), 1.0) for r in ranks])[:, None]
            * job.stage_weight.get(stage, 1.0)
            for stage in range(job.stages)
        ]

    def noisy(self, seconds: float) -> Array:
        return seconds * (1 + self.job.jitter * np.abs(self.draw.standard_normal(self.shape)))

    def add(self, name: str, coordinates: tuple[int, int, int], begin: Array, end: Array) -> None:
        """Writes down one operation."""
        self.rows.append((name, *coordinates, begin, end))

    def run(self) -> pa.Table:
        ready = [self._gather(stage) for stage in range(self.job.stages)]
        self._tail(self._pipeline(ready))
        return self._as_table()

    def _gather(self, stage: int) -> Array:
        begin = np.abs(self.draw.normal(0, 1e-4, self.shape))
        end = begin.max(axis=0) + self.noisy(_GATHER_SECONDS).max(axis=0) + np.zeros(self.shape)
        self.add("params-all-gather", (stage, 0, -1), begin, end)
        ends: Array = end
        return ends

    def _order(self, stage: int) -> list[tuple[str, int]]:
        """Forwards and backwards of a stage, one forward one backward after the warm-up."""
        batches = self.job.batches
        ahead = min(self.job.stages - stage - 1, batches)
        pairs = [(("forward", ahead + at), ("backward", at)) for at in range(batches - ahead)]
        warm_up = [("forward", at) for at in range(ahead)]
        return [
            *warm_up,
            *chain.from_iterable(pairs),
            *(("backward", at) for at in range(batches - ahead, batches)),
        ]

    def _pipeline(self, free: list[Array]) -> list[Array]:
        """Computes whatever has its input until nothing is left; when each stage was done."""
        orders = [self._order(stage) for stage in range(self.job.stages)]
        done: dict[tuple[str, int, int], Array] = {}
        while any(orders):
            for stage, order in enumerate(orders):
                while order and self._has_input(done, stage, order[0]):
                    free[stage] = self._compute(done, stage, order.pop(0), free[stage])
        return free

    def _source(self, stage: int, direction: str) -> int | None:
        source = stage - 1 if direction == "forward" else stage + 1
        return source if 0 <= source < self.job.stages else None

    def _has_input(
        self, done: dict[tuple[str, int, int], Array], stage: int, what: tuple[str, int]
    ) -> bool:
        source = self._source(stage, what[0])
        return source is None or (what[0], source, what[1]) in done

    def _compute(
        self,
        done: dict[tuple[str, int, int], Array],
        stage: int,
        what: tuple[str, int],
        free: Array,
    ) -> Array:
        direction, batch = what
        source = self._source(stage, direction)
        if source is not None:
            sent = done[direction, source, batch]
            arrived = np.maximum(sent, free) + self.noisy(_TRANSFER_SECONDS)
            self.add(f"{direction}-send", (source, batch, -1), sent, arrived)
            self.add(f"{direction}-recv", (stage, batch, -1), free, arrived)
            free = arrived
        seconds = FORWARD_SECONDS if direction == "forward" else BACKWARD_SECONDS
        end = free + self.noisy(seconds) * self.factor[stage] * self.length[batch]
        self.add(f"{direction}-compute", (stage, batch, batch), free, end)
        done[direction, stage, batch] = end
        last: Array = end
        return last

    def _tail(self, done: list[Array]) -> None:
        """Gradients, clipping over all ranks, optimizer."""
        for stage, begin in enumerate(done):
            end = begin.max(axis=0) + self.noisy(_SCATTER_SECONDS).max(axis=0)
            self.add("grads-reduce-scatter", (stage, 0, -1), begin, end + np.zeros(self.shape))
            done[stage] = end + np.zeros(self.shape)
        clipped = np.max(done, axis=(0, 1)) + _CLIP_SECONDS + np.zeros(self.shape)
        for stage, begin in enumerate(done):
            self.add("optimizer-clip-main-grad", (stage, 0, -1), begin, clipped)
            self.add("optimizer", (stage, 0, -1), clipped, clipped + self.noisy(_OPTIMIZER_SECONDS))

    def _as_table(self) -> pa.Table:
        job = self.job
        cells = job.replicas * job.num_steps
        names, stages, orders, batches, begins, ends = zip(*self.rows, strict=True)
        types = sorted(set(names))
        replica = np.tile(
            np.repeat(np.arange(job.replicas, dtype=np.int32), job.num_steps), len(names)
        )
        stage = np.repeat(np.array(stages, np.int16), cells)
        rank = stage.astype(np.int32) * job.replicas + replica
        skew = np.zeros(job.replicas * job.stages)
        skew[list(job.clock_skew)] = list(job.clock_skew.values())
        begin, end = np.array(begins).ravel() * job.scale, np.array(ends).ravel() * job.scale
        batch = np.repeat(np.array(batches, np.int16), cells)
        type_of = np.repeat(np.array([types.index(name) for name in names], np.int32), cells)
        computes = np.repeat(np.array([n.endswith("compute") for n in names]), cells)
        gathers = np.repeat(np.array([n in _OF_A_CHUNK for n in names]), cells)
        columns = {
            "dp_rank": replica,
            "stage": stage,
            "rank": rank,
            "step": np.tile(np.arange(job.num_steps, dtype=np.int64), job.replicas * len(names)),
            "optype": pa.DictionaryArray.from_arrays(type_of, types),
            "start_ts": (begin + skew[rank]).astype(np.float32),
            "duration": (end - begin).astype(np.float32),
            "seq_id": np.repeat(np.array(orders, np.int32), cells),
            "mc": np.where(computes | gathers, 0, -1).astype(np.int8),
            "mb_id": batch,
            "gmc": np.where(computes, stage, -1).astype(np.int16),
        }
        if job.ranks_on_node:
            nodes = [f"node-{at:04d}" for at in range(-(-len(skew) // job.ranks_on_node))]
            node_of = (rank // job.ranks_on_node).astype(np.int32)
            columns["node"] = pa.DictionaryArray.from_arrays(node_of, nodes)
        return pa.table(columns)


_OF_A_CHUNK = ("params-all-gather", "grads-reduce-scatter")
