"""The waits in a step: streams in recorded order, data flow, and joint starts.

A computation ends its duration after all its predecessors have ended. A communication ends its
transfer after all of its group have started. One graph serves all replicas and steps.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep_reports.arrays import Flags, Integers, Seconds
from lockstep_reports.recording import operations as optype
from lockstep_reports.recording.operations import Layout, OperationTrace
from lockstep_reports.wording import plural

_COMMON_SHARE = 0.5
_OPERATION_COLUMNS = ("type_of", "order", "stage", "shard", "chunk", "model_chunk", "batch")
# A few sparse rows must not grow into a block that fills the memory.
_MAX_CELLS_A_ROW, _SMALL_CELLS = 16, 1 << 20


class NoReplayError(ValueError):
    """A trace that cannot be replayed; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grid:
    """All complete steps of a trace; an operation is one (type, order, stage, shard).

    Attributes:
        types: names of the types; ``type_of`` holds indices into it [operations].
        order, stage, shard, chunk, model_chunk, batch: of each operation [operations].
        rank: global rank [stages, shards, replicas]; -1 where none was recorded.
        replicas: data-parallel coordinates [replicas].
        start: seconds from the step's begin, [operations, replicas, steps].
        duration: seconds, [operations, replicas, steps].
    """

    types: tuple[str, ...]
    type_of: Integers
    order: Integers
    stage: Integers
    shard: Integers
    chunk: Integers
    model_chunk: Integers
    batch: Integers
    rank: Integers
    replicas: Integers
    steps: Integers
    start: Seconds
    duration: Seconds
    notes: tuple[str, ...]

    @property
    def end(self) -> Seconds:
        """End of each operation: seconds from the step's begin, [operations, replicas, steps]."""
        end: Seconds = self.start + self.duration
        return end

    @property
    def stages(self) -> int:
        """Pipeline stages that were recorded."""
        return int(self.rank.shape[0])

    @property
    def shards(self) -> int:
        """Tensor-parallel ranks of a stage that were recorded."""
        return int(self.rank.shape[1])

    def select_type(self, *names: str) -> Flags:
        """Which operations are of one of the types [operations]."""
        numbers = [number for number, name in enumerate(self.types) if name in names]
        return np.isin(self.type_of, numbers)


def lay_out(trace: OperationTrace) -> Grid:
    """The trace's complete steps as one block; NoReplayError where nothing complete is left.

    Rare operations, replicas with gaps in most steps and steps with a gap go, with a note.
    """
    notes: list[str] = []
    stages, shards = int(trace.stage.max()) + 1, int(trace.shard.max()) + 1
    orders = int(trace.order.max()) + 1
    key = ((trace.type_of * orders + trace.order) * stages + trace.stage) * shards + trace.shard
    keys, op = _indexed(key)
    replicas, replica = _indexed(trace.replica)
    steps, step = _indexed(trace.step)
    shape = (len(keys), len(replicas), len(steps))
    if np.prod(shape) > _MAX_CELLS_A_ROW * len(op) + _SMALL_CELLS:
        raise NoReplayError("most operations are missing in most steps")
    cell = (op * shape[1] + replica) * shape[2] + step
    count = np.bincount(cell, minlength=int(np.prod(shape))).reshape(shape)
    if twice := int(np.count_nonzero(count > 1)):
        notes.append(f"{plural(twice, 'operation')} recorded more than once; the last row counts.")
    ops, complete_replicas, complete_steps = complete = _complete(count > 0, notes)
    rows = _first_rows(op, shape[0])[ops]
    rank = np.full((stages, shards, len(replicas)), -1, np.int64)
    rank[trace.stage, trace.shard, replica] = trace.rank
    block = np.ix_(*complete)
    start, duration = (_block(v, cell, shape)[block] for v in (trace.start, trace.duration))
    return Grid(
        types=trace.types,
        **{name: getattr(trace, name)[rows] for name in _OPERATION_COLUMNS},
        rank=rank[:, :, complete_replicas],
        replicas=replicas[complete_replicas],
        steps=steps[complete_steps],
        start=start - start.min(axis=(0, 1)),
        duration=duration,
        notes=tuple(notes),
    )


def _first_rows(op: Integers, count: int) -> Integers:
    """The first row of each operation [operations]."""
    first = np.zeros(count, np.int64)
    first[op[::-1]] = np.arange(len(op))[::-1]
    return first


def _indexed(values: Integers) -> tuple[Integers, Integers]:
    """Distinct values ascending, and the index of each value among them [rows]."""
    # A lookup table is far quicker than a sort of all rows, but needs a narrow range.
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > 4 * len(values) + 1024:
        distinct, index = np.unique(values, return_inverse=True)
        return distinct, index
    is_present = np.zeros(span, bool)
    is_present[values - low] = True
    lookup = np.cumsum(is_present) - 1
    return np.flatnonzero(is_present) + low, lookup[values - low]


def _block(values: Seconds, cell: Integers, shape: tuple[int, int, int]) -> Seconds:
    """Row values [rows] in their cells of a block; zero where no row is."""
    block = np.zeros(shape, values.dtype)
    block.reshape(-1)[cell] = values
    return block


def _complete(recorded: Flags, notes: list[str]) -> tuple[Integers, Integers, Integers]:
    """Indices of operations, replicas and steps such that each has every other.

    Flags say which cells have a row [operations, replicas, steps].
    """
    ops = np.flatnonzero(recorded.mean(axis=(1, 2)) >= _COMMON_SHARE)
    if rare := len(recorded) - len(ops):
        notes.append(f"{plural(rare, 'operation')} that most steps lack are not replayed.")
    recorded = recorded[ops]
    replicas = np.flatnonzero(recorded.all(axis=0).mean(axis=1) >= _COMMON_SHARE)
    if gaps := recorded.shape[1] - len(replicas):
        notes.append(f"{plural(gaps, 'replica')} with gaps in most steps are not replayed.")
    steps = np.flatnonzero(recorded[:, replicas].all(axis=(0, 1)))
    if lost := recorded.shape[2] - len(steps):
        notes.append(f"{plural(lost, 'step')} with operations missing are not replayed.")
    if not (len(ops) and len(replicas) and len(steps)):
        raise NoReplayError("no step is recorded completely: operations are missing in each")
    return ops, replicas, steps


Pairs = list[tuple[int, int]]
"""Pairs of operations of the grid."""
Matched = list[tuple[int, tuple[int, ...]]]
# Slack for clocks: a receive that seems to start so little after the last computation took place.
_CLOCK_SLACK_SECONDS = 5e-5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankStep:
    """The first step of the first replica on one rank, ``in_order`` of start, number and type.

    Start and end are of all ranks' operations: seconds from the step's begin [operations].
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
