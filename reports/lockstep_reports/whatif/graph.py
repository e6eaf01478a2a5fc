"""What waits for what in a step: streams in recorded order, data flow, and joint starts.

A computation ends its duration after all its predecessors have ended. A communication ends its
transfer after all of its group have started. One graph serves all replicas and steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lockstep_reports.arrays import Integers
from lockstep_reports.recording import operations as optype
from lockstep_reports.recording.operations import Layout
from lockstep_reports.whatif.grid import Grid, NoReplayError
from lockstep_reports.whatif.pairing import (
    ReferenceStep,
    first_backward_waits,
    pair,
    reference_step,
)

Edges = list[tuple[int, int]]
# Traces hold seconds as float32, and operations that follow each other may overlap by rounding.
_SLACK_SECONDS = np.float64(1e-6)
_ACROSS_REPLICAS = (*optype.REPLICA_COLLECTIVES, optype.CLIP, optype.PARAMS_SYNC, optype.GRADS_SYNC)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """The dependencies of one step; numbers are operations of the grid.

    Attributes:
        edges: pairs (earlier, later) [edges, 2].
        group: number of the group that starts jointly [operations]; -1 for computations.
        num_joint_replicas: that many neighbouring replicas start it jointly [operations].
    """

    edges: Integers
    group: Integers
    num_joint_replicas: Integers

    @property
    def communicates(self) -> NDArray[np.bool_]:
        """Which operations wait for a group [operations]."""
        return self.group >= 0


def build_graph(grid: Grid, layout: Layout) -> Graph:
    """The dependencies, read from the first step of the first replica.

    Raises:
        NoReplayError: its operations fit no known schedule.
    """
    reference = reference_step(grid, 0, 0)
    in_parallel = layout.replicas * layout.sequence > 1
    paired = pair(grid, reference)
    edges, groups = list(paired.edges), [list(two) for two in paired.pairs]
    for stage in range(grid.stages):
        for shard in range(grid.shards):
            edges += _link_rank(grid, reference, stage, shard, in_parallel=in_parallel)
    groups += _groups_over_ranks(grid)
    group = _numbered(grid, groups)
    edge_array = np.array(sorted(set(edges)) or np.empty((0, 2)), np.int64).reshape(-1, 2)
    return Graph(
        edges=edge_array, group=group, num_joint_replicas=_num_joint_replicas(grid, layout, group)
    )


def _chain(ops: Iterable[int]) -> Edges:
    return list(pairwise(int(op) for op in ops))


def _link_rank(
    grid: Grid, reference: ReferenceStep, stage: int, shard: int, *, in_parallel: bool
) -> Edges:
    computed = reference.ops(stage, shard, *optype.COMPUTE)
    if not len(computed):
        raise NoReplayError(f"stage {stage} has recorded no computation")
    edges = _chain(computed)
    for name in optype.POINT_TO_POINT:
        edges += _chain(reference.ops(stage, shard, name))
    edges += first_backward_waits(grid, reference, stage, shard)
    edges += _link_recorded_order(reference, stage, shard)
    overlapped = bool(len(reference.ops(stage, shard, optype.SEPARATE_GRADS)))
    if in_parallel:
        edges += _chain(reference.ops(stage, shard, optype.PARAMS_GATHER, optype.GRADS_SCATTER))
        edges += _parameters_first(grid, reference, stage, shard)
        if overlapped:
            edges += _gradients_last(grid, reference, stage, shard)
    return edges + _link_tail(grid, reference, stage, shard, overlapped and in_parallel)


def _parameters_first(grid: Grid, reference: ReferenceStep, stage: int, shard: int) -> Edges:
    """A chunk's first forward waits for the last gathering of its parameters."""
    forward = reference.ops(stage, shard, optype.FORWARD)
    gathered = {
        int(grid.chunk[op]): int(op) for op in _sort_by_order(grid, reference, stage, shard)
    }
    first = {int(grid.chunk[op]): int(op) for op in forward[::-1]}
    return [(op, first[chunk]) for chunk, op in gathered.items() if chunk in first]


def _sort_by_order(
    grid: Grid, reference: ReferenceStep, stage: int, shard: int, name: str = optype.PARAMS_GATHER
) -> Integers:
    ops = reference.ops(stage, shard, name)
    in_order: Integers = ops[np.argsort(grid.order[ops], kind="stable")]
    return in_order


def _gradients_last(grid: Grid, reference: ReferenceStep, stage: int, shard: int) -> Edges:
    """The first scattering of a chunk's gradients waits for the chunk's last backward."""
    backward = reference.ops(stage, shard, optype.BACKWARD)
    scattered = _sort_by_order(grid, reference, stage, shard, optype.GRADS_SCATTER)[::-1]
    first = {int(grid.chunk[op]): int(op) for op in scattered}
    by_end = backward[np.argsort(reference.end[backward], kind="stable")]
    last = {int(grid.chunk[op]): int(op) for op in by_end}
    return [(last[chunk], op) for chunk, op in first.items() if chunk in last]


def _link_tail(
    grid: Grid, reference: ReferenceStep, stage: int, shard: int, overlapped: bool
) -> Edges:
    """From the last computation to the optimizer, one after the other."""
    computed = reference.ops(stage, shard, *optype.COMPUTE)
    last = int(computed[np.argmax(reference.end[computed])])
    scattered = [
        int(op) for op in _sort_by_order(grid, reference, stage, shard, optype.GRADS_SCATTER)
    ]
    names = (optype.LAYERNORM_GRADS, optype.EMBEDDING_GRADS)
    tail = [int(op) for name in names for op in reference.ops(stage, shard, name)]
    tail += reference.ops(stage, shard, optype.SEPARATE_GRADS).tolist() if overlapped else scattered
    synced = [int(op) for op in reference.ops(stage, shard, optype.GRADS_SYNC)]
    tail += [
        int(op)
        for name in (optype.CLIP, optype.OPTIMIZER)
        for op in reference.ops(stage, shard, name)
    ]
    garbage = [int(op) for op in reference.ops(stage, shard, optype.GARBAGE)]
    edges = _chain([last, *garbage, *tail])
    before = (scattered[-1:] if overlapped else []) + synced[-1:]
    return edges + [(op, tail[0]) for op in before if tail and op != tail[0]]


def _link_recorded_order(reference: ReferenceStep, stage: int, shard: int) -> Edges:
    """Edges of the types that our own jobs add: after what had ended, before what began later."""
    edges: Edges = []
    computed = reference.ops(stage, shard, *optype.COMPUTE)
    begins, ends = reference.start[computed], reference.end[computed]
    for names in _streams(reference, stage, shard):
        ops = reference.ops(stage, shard, *names)
        edges += _chain(ops)
        before = np.searchsorted(ends, reference.start[ops] + _SLACK_SECONDS, side="right") - 1
        after = np.searchsorted(begins, reference.end[ops] - _SLACK_SECONDS)
        edges += [
            (int(computed[index]), int(op))
            for op, index in zip(ops, before, strict=True)
            if index >= 0
        ]
        edges += [
            (int(op), int(computed[index]))
            for op, index in zip(ops, after, strict=True)
            if index < len(computed)
        ]
    return edges


def _streams(reference: ReferenceStep, stage: int, shard: int) -> tuple[tuple[str, ...], ...]:
    """One stream for collectives that never overlap; else one each for parameters and gradients."""
    ops = reference.ops(stage, shard, *optype.IN_ORDER)
    if not np.any(reference.start[ops][1:] < reference.end[ops][:-1] - _SLACK_SECONDS):
        return (optype.IN_ORDER,)
    others = tuple(
        name for name in optype.IN_ORDER if name not in {optype.PARAMS_SYNC, optype.GRADS_SYNC}
    )
    return ((optype.PARAMS_SYNC,), (optype.GRADS_SYNC,), others)


def _groups_over_ranks(grid: Grid) -> list[list[int]]:
    """Groups over ranks of one replica, without the pairs: embedding, clipping, tensor-parallel."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for op in np.flatnonzero(
        grid.select_type(optype.EMBEDDING_GRADS, optype.CLIP, *optype.OVER_TENSOR)
    ):
        name, order = grid.types[grid.type_of[op]], int(grid.order[op])
        stage = int(grid.stage[op]) if name in optype.OVER_TENSOR else -1
        groups.setdefault((name, order, stage), []).append(int(op))
    return list(groups.values())


def _numbered(grid: Grid, groups: list[list[int]]) -> Integers:
    """The group of each operation; a communication without a peer is a group of one."""
    group = np.full(len(grid.order), -1, np.int64)
    for number, members in enumerate(groups):
        group[members] = number
    unpaired = np.flatnonzero(
        grid.select_type(*optype.POINT_TO_POINT, *optype.REPLICA_COLLECTIVES, *optype.IN_ORDER)
        & (group < 0)
    )
    group[unpaired] = len(groups) + np.arange(len(unpaired))
    return group


def _num_joint_replicas(grid: Grid, layout: Layout, group: Integers) -> Integers:
    replicas = len(grid.replicas)
    joint = np.ones(len(group), np.int64)
    joint[grid.select_type(*_ACROSS_REPLICAS)] = replicas
    experts = layout.experts or replicas
    joint[grid.select_type(optype.ALL_TO_ALL)] = experts if replicas % experts == 0 else replicas
    return joint
