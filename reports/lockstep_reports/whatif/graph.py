"""What waits for what in a step: streams in recorded order, data flow, and joint starts.

A computation ends its duration after all its predecessors have ended. A communication ends its
transfer after all of its group have started. One graph serves all replicas and steps.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lockstep_reports.arrays import Integers
from lockstep_reports.recording import operations as optype
from lockstep_reports.recording.operations import Layout
from lockstep_reports.whatif import pairing
from lockstep_reports.whatif.grid import Grid, NoReplayError

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
    in_parallel = layout.replicas * layout.sequence > 1
    ranks = pairing.reference_step(grid)
    edges, pairs = pairing.pair(ranks)
    for rank in ranks:
        edges += _link_rank(rank, in_parallel=in_parallel)
    group = _numbered(grid, [*map(list, pairs), *_groups_over_ranks(grid)])
    edge_array = np.array(sorted(set(edges)) or np.empty((0, 2)), np.int64).reshape(-1, 2)
    joint = _num_joint_replicas(grid, layout, group)
    return Graph(edges=edge_array, group=group, num_joint_replicas=joint)


def _chain(*parts: Integers) -> pairing.Pairs:
    """Edges from each operation to the next one."""
    return list(pairwise(np.concatenate(parts).tolist()))


def _link_rank(rank: pairing.RankStep, *, in_parallel: bool) -> pairing.Pairs:
    computed = rank.ops(*optype.COMPUTE)
    if not len(computed):
        raise NoReplayError(f"stage {rank.stage} has recorded no computation")
    edges = _chain(computed)
    for name in optype.POINT_TO_POINT:
        edges += _chain(rank.ops(name))
    edges += pairing.first_backward_waits(rank) + _link_recorded_order(rank, computed)
    overlapped = in_parallel and bool(len(rank.ops(optype.SEPARATE_GRADS)))
    if in_parallel:
        edges += _chain(rank.ops(optype.PARAMS_GATHER, optype.GRADS_SCATTER))
        edges += _parameters_first(rank)
    if overlapped:
        edges += _gradients_last(rank)
    return edges + _link_tail(rank, computed, overlapped=overlapped)


def _map_chunks(rank: pairing.RankStep, ops: Integers) -> dict[int, int]:
    """The last operation of each chunk."""
    return dict(zip(rank.grid.chunk[ops].tolist(), ops.tolist(), strict=True))


def _parameters_first(rank: pairing.RankStep) -> pairing.Pairs:
    """A chunk's first forward waits for the last gathering of its parameters."""
    gathered = _map_chunks(rank, rank.sort_by_number(optype.PARAMS_GATHER))
    first = _map_chunks(rank, rank.ops(optype.FORWARD)[::-1])
    return [(op, first[chunk]) for chunk, op in gathered.items() if chunk in first]


def _gradients_last(rank: pairing.RankStep) -> pairing.Pairs:
    """The first scattering of a chunk's gradients waits for the chunk's last backward."""
    backward = rank.ops(optype.BACKWARD)
    first = _map_chunks(rank, rank.sort_by_number(optype.GRADS_SCATTER)[::-1])
    last = _map_chunks(rank, backward[np.argsort(rank.end[backward], kind="stable")])
    return [(last[chunk], op) for chunk, op in first.items() if chunk in last]


def _link_tail(rank: pairing.RankStep, computed: Integers, *, overlapped: bool) -> pairing.Pairs:
    """From the last computation to the optimizer, one after the other."""
    last = computed[np.argmax(rank.end[computed])]
    scattered, synced = rank.sort_by_number(optype.GRADS_SCATTER), rank.ops(optype.GRADS_SYNC)
    tail = np.concatenate(
        [
            rank.ops(optype.LAYERNORM_GRADS),
            rank.ops(optype.EMBEDDING_GRADS),
            rank.ops(optype.SEPARATE_GRADS) if overlapped else scattered,
            rank.ops(optype.CLIP),
            rank.ops(optype.OPTIMIZER),
        ]
    )
    edges = _chain(np.array([last]), rank.ops(optype.GARBAGE), tail)
    before = [*(scattered[-1:] if overlapped else ()), *synced[-1:]]
    return edges + [(int(op), int(tail[0])) for op in before if len(tail) and op != tail[0]]


def _link_recorded_order(rank: pairing.RankStep, computed: Integers) -> pairing.Pairs:
    """Edges of the types that our own jobs add: after what had ended, before what began later."""
    edges: pairing.Pairs = []
    begins, ends = rank.start[computed], rank.end[computed]
    for names in _streams(rank):
        ops = rank.ops(*names)
        edges += _chain(ops)
        before = np.searchsorted(ends, rank.start[ops] + _SLACK_SECONDS, side="right") - 1
        after = np.searchsorted(begins, rank.end[ops] - _SLACK_SECONDS)
        follows, precedes = before >= 0, after < len(computed)
        edges += zip(computed[before[follows]].tolist(), ops[follows].tolist(), strict=True)
        edges += zip(ops[precedes].tolist(), computed[after[precedes]].tolist(), strict=True)
    return edges


def _streams(rank: pairing.RankStep) -> tuple[tuple[str, ...], ...]:
    """One stream for collectives that never overlap; else one each for parameters and gradients."""
    ops = rank.ops(*optype.IN_ORDER)
    if not np.any(rank.start[ops][1:] < rank.end[ops][:-1] - _SLACK_SECONDS):
        return (optype.IN_ORDER,)
    separate = (optype.PARAMS_SYNC, optype.GRADS_SYNC)
    others = tuple(name for name in optype.IN_ORDER if name not in separate)
    return (*((name,) for name in separate), others)


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
