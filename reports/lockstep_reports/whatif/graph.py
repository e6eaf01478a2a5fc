"""What waits for what in a step: streams in recorded order, what feeds what, who starts together.

A computation ends its duration after all before it have ended. A communication ends its transfer
after all of its group have started. One graph serves all replicas and steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lockstep_reports.arrays import Integers
from lockstep_reports.recording.operations import (
    BACKWARD,
    CLIP,
    COMPUTE,
    EMBEDDING_GRADS,
    FORWARD,
    GARBAGE,
    GRADS_SCATTER,
    GRADS_SYNC,
    IN_ORDER,
    LAYERNORM_GRADS,
    OPTIMIZER,
    OVER_TENSOR,
    PARAMS_GATHER,
    PARAMS_SYNC,
    POINT_TO_POINT,
    REPLICA_COLLECTIVES,
    SEPARATE_GRADS,
    Layout,
)
from lockstep_reports.whatif.grid import Grid, NoReplayError
from lockstep_reports.whatif.lane import Lane, lane_of
from lockstep_reports.whatif.pairing import first_backward_waits, pair

Edges = list[tuple[int, int]]
_SLACK_SECONDS = np.float64(1e-6)
_ACROSS_REPLICAS = (*REPLICA_COLLECTIVES, CLIP, PARAMS_SYNC, GRADS_SYNC)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """The dependencies of one step; numbers are operations of the grid.

    Attributes:
        edges: (earlier, later) [edges x 2].
        group: number of the group that starts together [operations]; -1 for computations.
        replicas_together: that many neighbouring replicas start it together [operations].
    """

    edges: Integers
    group: Integers
    replicas_together: Integers

    @property
    def communicates(self) -> NDArray[np.bool_]:
        """Which operations wait for a group [operations]."""
        return self.group >= 0


def build_graph(grid: Grid, layout: Layout) -> Graph:
    """The dependencies, read from the first step of the first replica.

    Raises:
        NoReplayError: its operations fit no known schedule.
    """
    lane = lane_of(grid, 0, 0)
    in_parallel = layout.replicas * layout.sequence > 1
    paired = pair(grid, lane)
    edges, groups = list(paired.edges), [list(two) for two in paired.pairs]
    for stage in range(grid.stages):
        for shard in range(grid.shards):
            edges += _on_a_rank(grid, lane, stage, shard, in_parallel=in_parallel)
    groups += _together(grid)
    group = _numbered(grid, groups)
    edge_array = np.array(sorted(set(edges)) or np.empty((0, 2)), np.int64).reshape(-1, 2)
    return Graph(
        edges=edge_array, group=group, replicas_together=_replicas_together(grid, layout, group)
    )


def _chain(ops: Iterable[int]) -> Edges:
    return list(pairwise(int(op) for op in ops))


def _on_a_rank(grid: Grid, lane: Lane, stage: int, shard: int, *, in_parallel: bool) -> Edges:
    computed = lane.ops(stage, shard, *COMPUTE)
    if not len(computed):
        raise NoReplayError(f"stage {stage} has recorded no computation")
    edges = _chain(computed)
    for name in POINT_TO_POINT:
        edges += _chain(lane.ops(stage, shard, name))
    edges += first_backward_waits(grid, lane, stage, shard)
    edges += _in_recorded_order(lane, stage, shard)
    overlapped = bool(len(lane.ops(stage, shard, SEPARATE_GRADS)))
    if in_parallel:
        edges += _chain(lane.ops(stage, shard, PARAMS_GATHER, GRADS_SCATTER))
        edges += _parameters_first(grid, lane, stage, shard)
        if overlapped:
            edges += _gradients_last(grid, lane, stage, shard)
    return edges + _after_the_last(grid, lane, stage, shard, overlapped and in_parallel)


def _parameters_first(grid: Grid, lane: Lane, stage: int, shard: int) -> Edges:
    """A chunk's first forward waits for the last gathering of its parameters."""
    forward = lane.ops(stage, shard, FORWARD)
    gathered = {int(grid.chunk[op]): int(op) for op in _by_order(grid, lane, stage, shard)}
    first = {int(grid.chunk[op]): int(op) for op in forward[::-1]}
    return [(op, first[chunk]) for chunk, op in gathered.items() if chunk in first]


def _by_order(
    grid: Grid, lane: Lane, stage: int, shard: int, name: str = PARAMS_GATHER
) -> Integers:
    ops = lane.ops(stage, shard, name)
    in_order: Integers = ops[np.argsort(grid.order[ops], kind="stable")]
    return in_order


def _gradients_last(grid: Grid, lane: Lane, stage: int, shard: int) -> Edges:
    """The first scattering of a chunk's gradients waits for the chunk's last backward."""
    backward = lane.ops(stage, shard, BACKWARD)
    scattered = _by_order(grid, lane, stage, shard, GRADS_SCATTER)[::-1]
    first = {int(grid.chunk[op]): int(op) for op in scattered}
    by_end = backward[np.argsort(lane.end[backward], kind="stable")]
    last = {int(grid.chunk[op]): int(op) for op in by_end}
    return [(last[chunk], op) for chunk, op in first.items() if chunk in last]


def _after_the_last(grid: Grid, lane: Lane, stage: int, shard: int, overlapped: bool) -> Edges:
    """From the last computation to the optimizer, one after the other."""
    computed = lane.ops(stage, shard, *COMPUTE)
    last = int(computed[np.argmax(lane.end[computed])])
    scattered = [int(op) for op in _by_order(grid, lane, stage, shard, GRADS_SCATTER)]
    names = (LAYERNORM_GRADS, EMBEDDING_GRADS)
    tail = [int(op) for name in names for op in lane.ops(stage, shard, name)]
    tail += lane.ops(stage, shard, SEPARATE_GRADS).tolist() if overlapped else scattered
    in_order = [int(op) for op in lane.ops(stage, shard, GRADS_SYNC)]
    tail += [int(op) for name in (CLIP, OPTIMIZER) for op in lane.ops(stage, shard, name)]
    garbage = [int(op) for op in lane.ops(stage, shard, GARBAGE)]
    edges = _chain([last, *garbage, *tail])
    before = (scattered[-1:] if overlapped else []) + in_order[-1:]
    return edges + [(op, tail[0]) for op in before if tail and op != tail[0]]


def _in_recorded_order(lane: Lane, stage: int, shard: int) -> Edges:
    """Collectives of our own: after what had ended when they began, before what began after."""
    edges: Edges = []
    computed = lane.ops(stage, shard, *COMPUTE)
    begins, ends = lane.start[computed], lane.end[computed]
    for names in _streams(lane, stage, shard):
        ops = lane.ops(stage, shard, *names)
        edges += _chain(ops)
        before = np.searchsorted(ends, lane.start[ops] + _SLACK_SECONDS, side="right") - 1
        after = np.searchsorted(begins, lane.end[ops] - _SLACK_SECONDS)
        edges += [
            (int(computed[at]), int(op)) for op, at in zip(ops, before, strict=True) if at >= 0
        ]
        edges += [
            (int(op), int(computed[at]))
            for op, at in zip(ops, after, strict=True)
            if at < len(computed)
        ]
    return edges


def _streams(lane: Lane, stage: int, shard: int) -> tuple[tuple[str, ...], ...]:
    """Collectives that never overlap share one stream; else parameters and gradients have own."""
    ops = lane.ops(stage, shard, *IN_ORDER)
    if not np.any(lane.start[ops][1:] < lane.end[ops][:-1] - _SLACK_SECONDS):
        return (IN_ORDER,)
    others = tuple(name for name in IN_ORDER if name not in {PARAMS_SYNC, GRADS_SYNC})
    return ((PARAMS_SYNC,), (GRADS_SYNC,), others)


def _together(grid: Grid) -> list[list[int]]:
    """Groups over ranks of one replica, beside the pairs: embedding, clipping, tensor-parallel."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for op in np.flatnonzero(grid.of_type(EMBEDDING_GRADS, CLIP, *OVER_TENSOR)):
        name, order = grid.types[grid.type_of[op]], int(grid.order[op])
        stage = int(grid.stage[op]) if name in OVER_TENSOR else -1
        groups.setdefault((name, order, stage), []).append(int(op))
    return list(groups.values())


def _numbered(grid: Grid, groups: list[list[int]]) -> Integers:
    """The group of each operation; one of a communication alone is a group of one."""
    group = np.full(len(grid.order), -1, np.int64)
    for number, members in enumerate(groups):
        group[members] = number
    alone = np.flatnonzero(
        grid.of_type(*POINT_TO_POINT, *REPLICA_COLLECTIVES, *IN_ORDER) & (group < 0)
    )
    group[alone] = len(groups) + np.arange(len(alone))
    return group


def _replicas_together(grid: Grid, layout: Layout, group: Integers) -> Integers:
    replicas = len(grid.replicas)
    together = np.ones(len(group), np.int64)
    together[grid.of_type(*_ACROSS_REPLICAS)] = replicas
    experts = layout.experts or replicas
    together[grid.of_type("all_to_all")] = experts if replicas % experts == 0 else replicas
    return together
