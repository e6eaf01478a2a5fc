"""Which send belongs to which receive, and both to which computation.

A recorder may write sends and receives that never took place: before the first or after the last
computation of a stage, and at both ends of the model under virtual stages (the published traces
do). They pair with nothing.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lockstep_reports.arrays import Integers, Seconds
from lockstep_reports.recording import operations as optype
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

    Raises:
        NoReplayError: a stage has not as many as its computations need.
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
