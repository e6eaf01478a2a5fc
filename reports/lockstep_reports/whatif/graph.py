"""The waits in a step: streams in recorded order, data flow, and joint starts.

A computation ends its duration after all its predecessors have ended. A communication ends its
transfer after all of its group have started. One graph serves all replicas and steps.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep_reports.arrays import Integers, Seconds
from lockstep_reports.recording import operations as optype
from lockstep_reports.recording.operations import Layout
from lockstep_reports.whatif.grid import Grid, NoReplayError

Pairs = list[tuple[int, int]]
"""Pairs of operations of the grid."""
Matched = list[tuple[int, tuple[int, ...]]]
# Slack for clocks: a receive that seems to start so little after the last computation took place.
_CLOCK_SLACK_SECONDS = 5e-5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankStep:
    """The first step of the first replica on one rank.

    Attributes:
        in_order: its operations by (start, order, name of the type).
        start: of the operations of all ranks: seconds from the step's begin [operations].
        end: in the same way.
    """

    grid: Grid
    stage: int
    shard: int
    in_order: Integers
    start: Seconds
    end: Seconds

    def ops(self, *names: str) -> Integers:
        """Operations of some types, in recorded order."""
        selected: Integers = self.in_order[self.grid.select_type(*names)[self.in_order]]
        return selected

    def sort_by_number(self, name: str) -> Integers:
        """Operations of a type in the order of their numbers."""
        ops = self.ops(name)
        sorted_ops: Integers = ops[np.argsort(self.grid.order[ops], kind="stable")]
        return sorted_ops


def reference_step(grid: Grid) -> list[RankStep]:
    """The step by which the graph is built, by rank."""
    start, end = grid.start[:, 0, 0], grid.end[:, 0, 0]
    by_name = np.argsort(np.argsort(grid.types))[grid.type_of]
    in_order = np.lexsort((by_name, grid.order, start))
    stages, shards = grid.stage[in_order], grid.shard[in_order]
    return [
        RankStep(
            grid=grid,
            stage=stage,
            shard=shard,
            in_order=in_order[(stages == stage) & (shards == shard)],
            start=start,
            end=end,
        )
        for stage in range(grid.stages)
        for shard in range(grid.shards)
    ]


class _Direction(NamedTuple):
    """One of the four streams between stages."""

    type_name: str
    peer: str
    compute: str
    receives: bool
    towards: int


_DIRECTIONS = (
    _Direction(optype.FORWARD_SEND, optype.FORWARD_RECV, optype.FORWARD, False, 1),
    _Direction(optype.FORWARD_RECV, optype.FORWARD_SEND, optype.FORWARD, True, -1),
    _Direction(optype.BACKWARD_SEND, optype.BACKWARD_RECV, optype.BACKWARD, False, -1),
    _Direction(optype.BACKWARD_RECV, optype.BACKWARD_SEND, optype.BACKWARD, True, 1),
)


def pair(ranks: list[RankStep]) -> tuple[Pairs, Pairs]:
    """What point-to-point operations wait for: (earlier, later), and each send with its receive.

    Raises NoReplayError where a stage has not as many as its computations need.
    """
    edges: Pairs = []
    real: dict[tuple[str, int, int], list[int]] = {}
    for rank in ranks:
        for direction in _DIRECTIONS:
            matched = _match(rank, direction)
            edges += _waits(direction, matched)
            real[direction.type_name, rank.stage, rank.shard] = [
                op for op, computed in matched if _crosses(rank.grid, direction, computed[-1])
            ]
    return edges, _pairs(ranks[0].grid, real)


def _match(rank: RankStep, direction: _Direction) -> Matched:
    """Each operation that took place, with the computation before its own (if any) and its own."""
    grid, stage = rank.grid, rank.stage
    ops, computed = rank.ops(direction.type_name), rank.sort_by_number(direction.compute)
    if not len(ops):
        return []
    if not len(computed):
        raise NoReplayError(f"stage {stage} has {direction.type_name} but no {direction.compute}")
    if direction.receives:
        took_place = rank.start[ops] <= rank.start[computed].max() + _CLOCK_SLACK_SECONDS
    else:
        took_place = rank.end[ops] >= rank.end[computed].min() - _CLOCK_SLACK_SECONDS
    crossing = [i for i, op in enumerate(computed) if _crosses(grid, direction, int(op))]
    if len(crossing) == len(ops) < len(computed):
        # Only what took place was written down: nothing at the ends of the model.
        return [(int(op), _up_to(computed, i)) for op, i in zip(ops, crossing, strict=True)]
    ops = ops[took_place]
    missing = len(computed) - len(ops)
    at_an_end = stage in {0, grid.stages - 1}
    if missing and not (at_an_end and (missing == 1 or not len(ops))):
        raise NoReplayError(
            f"stage {stage} has {len(ops)} {direction.type_name} for {len(computed)} "
            f"{direction.compute}"
        )
    skip = 1 if direction.receives and missing == 1 and len(ops) else 0
    return [(int(op), _up_to(computed, i)) for i, op in enumerate(ops, start=skip)]


def _up_to(computed: Integers, index: int) -> tuple[int, ...]:
    """A computation, preceded by the one before it if there is one."""
    return tuple(int(op) for op in computed[max(0, index - 1) : index + 1])


def _waits(direction: _Direction, matched: Matched) -> Pairs:
    """A send waits for its computation; a receive comes between two computations."""
    edges: Pairs = []
    for op, computed in matched:
        own = computed[-1]
        if not direction.receives:
            edges.append((own, op))
            continue
        edges.append((op, own))
        edges += [(before, op) for before in computed[:-1]]
    return edges


def _crosses(grid: Grid, direction: _Direction, computed: int) -> bool:
    """Whether there is a chunk of the model on the other side."""
    chunks = int(grid.chunk[grid.select_type(optype.FORWARD)].max()) + 1
    return 0 <= int(grid.model_chunk[computed]) + direction.towards < chunks * grid.stages


def _pairs(grid: Grid, real: dict[tuple[str, int, int], list[int]]) -> Pairs:
    pairs: Pairs = []
    for direction in (d for d in _DIRECTIONS if not d.receives):
        for stage in range(grid.stages):
            for shard in range(grid.shards):
                sent = real[direction.type_name, stage, shard]
                other = (stage + direction.towards) % grid.stages
                received = real[direction.peer, other, shard]
                if len(sent) != len(received):
                    raise NoReplayError(
                        f"stage {stage} has {len(sent)} {direction.type_name}, stage {other} "
                        f"{len(received)} {direction.peer}"
                    )
                pairs += zip(sent, received, strict=True)
    return pairs


def first_backward_waits(rank: RankStep) -> Pairs:
    """The warm-up: the first backward send and receive follow the second-last forward before it."""
    ordered = rank.ops(optype.FORWARD, optype.BACKWARD)
    backward = np.flatnonzero(rank.grid.select_type(optype.BACKWARD)[ordered])
    if not len(backward) or backward[0] < 2:  # noqa: PLR2004  # two forwards, as the rule says
        return []
    ops = rank.ops(optype.BACKWARD_RECV, optype.BACKWARD_SEND)
    before = int(ordered[backward[0] - 2])
    return [(before, int(op)) for op in ops if rank.grid.order[op] == 0]


# Traces hold seconds as float32, and operations that follow each other may overlap by rounding.
_SLACK_SECONDS = np.float64(1e-6)
_REPLICA_TYPES = (*optype.REPLICA_COLLECTIVES, optype.CLIP, optype.PARAMS_SYNC, optype.GRADS_SYNC)


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
    """The dependencies in the first replica's first step; NoReplayError if they fit no schedule."""
    in_parallel = layout.replicas * layout.sequence > 1
    ranks = reference_step(grid)
    edges, pairs = pair(ranks)
    for rank in ranks:
        edges += _link_rank(rank, in_parallel=in_parallel)
    group = _numbered(grid, [*map(list, pairs), *_groups_over_ranks(grid)])
    edge_array = np.array(sorted(set(edges)) or np.empty((0, 2)), np.int64).reshape(-1, 2)
    joint = _num_joint_replicas(grid, layout, group)
    return Graph(edges=edge_array, group=group, num_joint_replicas=joint)


def _chain(*parts: Integers) -> Pairs:
    """Edges from each operation to the next one."""
    return list(pairwise(np.concatenate(parts).tolist()))


def _link_rank(rank: RankStep, *, in_parallel: bool) -> Pairs:
    computed = rank.ops(*optype.COMPUTE)
    if not len(computed):
        raise NoReplayError(f"stage {rank.stage} has recorded no computation")
    edges = _chain(computed)
    for name in optype.POINT_TO_POINT:
        edges += _chain(rank.ops(name))
    edges += first_backward_waits(rank) + _link_recorded_order(rank, computed)
    overlapped = in_parallel and bool(len(rank.ops(optype.SEPARATE_GRADS)))
    if in_parallel:
        edges += _chain(rank.ops(optype.PARAMS_GATHER, optype.GRADS_SCATTER))
        edges += _parameters_first(rank)
    if overlapped:
        edges += _gradients_last(rank)
    return edges + _link_tail(rank, computed, overlapped=overlapped)


def _map_chunks(rank: RankStep, ops: Integers) -> dict[int, int]:
    """The last operation of each chunk."""
    return dict(zip(rank.grid.chunk[ops].tolist(), ops.tolist(), strict=True))


def _parameters_first(rank: RankStep) -> Pairs:
    """A chunk's first forward waits for the last gathering of its parameters."""
    gathered = _map_chunks(rank, rank.sort_by_number(optype.PARAMS_GATHER))
    first = _map_chunks(rank, rank.ops(optype.FORWARD)[::-1])
    return [(op, first[chunk]) for chunk, op in gathered.items() if chunk in first]


def _gradients_last(rank: RankStep) -> Pairs:
    """The first scattering of a chunk's gradients waits for the chunk's last backward."""
    backward = rank.ops(optype.BACKWARD)
    first = _map_chunks(rank, rank.sort_by_number(optype.GRADS_SCATTER)[::-1])
    last = _map_chunks(rank, backward[np.argsort(rank.end[backward], kind="stable")])
    return [(last[chunk], op) for chunk, op in first.items() if chunk in last]


def _link_tail(rank: RankStep, computed: Integers, *, overlapped: bool) -> Pairs:
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


def _link_recorded_order(rank: RankStep, computed: Integers) -> Pairs:
    """Edges of the types that our own jobs add: after what had ended, before what began later."""
    edges: Pairs = []
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


def _streams(rank: RankStep) -> tuple[tuple[str, ...], ...]:
    """One stream for collectives that never overlap; else one each for parameters and gradients."""
    ops = rank.ops(*optype.ORDERED_TYPES)
    if not np.any(rank.start[ops][1:] < rank.end[ops][:-1] - _SLACK_SECONDS):
        return (optype.ORDERED_TYPES,)
    separate = (optype.PARAMS_SYNC, optype.GRADS_SYNC)
    others = tuple(name for name in optype.ORDERED_TYPES if name not in separate)
    return (*((name,) for name in separate), others)


def _groups_over_ranks(grid: Grid) -> list[list[int]]:
    """Groups over ranks of one replica, without the pairs: embedding, clipping, tensor-parallel."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for op in np.flatnonzero(
        grid.select_type(optype.EMBEDDING_GRADS, optype.CLIP, *optype.TENSOR_TYPES)
    ):
        name, order = grid.types[grid.type_of[op]], int(grid.order[op])
        stage = int(grid.stage[op]) if name in optype.TENSOR_TYPES else -1
        groups.setdefault((name, order, stage), []).append(int(op))
    return list(groups.values())


def _numbered(grid: Grid, groups: list[list[int]]) -> Integers:
    """The group of each operation; a communication without a peer is a group of one."""
    group = np.full(len(grid.order), -1, np.int64)
    for number, members in enumerate(groups):
        group[members] = number
    unpaired = np.flatnonzero(
        grid.select_type(*optype.POINT_TO_POINT, *optype.REPLICA_COLLECTIVES, *optype.ORDERED_TYPES)
        & (group < 0)
    )
    group[unpaired] = len(groups) + np.arange(len(unpaired))
    return group


def _num_joint_replicas(grid: Grid, layout: Layout, group: Integers) -> Integers:
    replicas = len(grid.replicas)
    joint = np.ones(len(group), np.int64)
    joint[grid.select_type(*_REPLICA_TYPES)] = replicas
    experts = layout.experts or replicas
    joint[grid.select_type(optype.ALL_TO_ALL)] = experts if replicas % experts == 0 else replicas
    return joint
