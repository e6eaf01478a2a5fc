"""Which send belongs to which receive, and both to which computation.

A recorder may write sends and receives that never took place: before the first or after the last
computation of a stage, and at both ends of the model under virtual stages (the published traces
do). They pair with nothing.
"""

from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Integers, Seconds
from lockstep_reports.recording import operations as optype
from lockstep_reports.whatif.grid import Grid, NoReplayError

# Slack for clocks: a receive that seems to start so little after the last computation took place.
_CLOCK_SLACK_SECONDS = 5e-5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReferenceStep:
    """Times of one replica's step.

    Attributes:
        in_order: all operations by (start, order, name of the type) [operations].
        start: seconds from the step's begin [operations].
        end: seconds from the step's begin [operations].
    """

    grid: Grid
    in_order: Integers
    start: Seconds
    end: Seconds

    def ops(self, stage: int, shard: int, *names: str) -> Integers:
        """Operations of some types on one rank, in recorded order."""
        on_rank = (self.grid.stage == stage) & (self.grid.shard == shard)
        selected: Integers = self.in_order[(on_rank & self.grid.select_type(*names))[self.in_order]]
        return selected


def reference_step(grid: Grid, replica: int, step: int) -> ReferenceStep:
    """The step of one replica; both are indices into the grid."""
    start, end = grid.start[:, replica, step], grid.end[:, replica, step]
    by_name = np.argsort(np.argsort(grid.types))[grid.type_of]
    in_order = np.lexsort((by_name, grid.order, start))
    return ReferenceStep(grid=grid, in_order=in_order, start=start, end=end)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Direction:
    """One of the four streams between stages."""

    type_name: str
    peer: str
    compute: str
    receives: bool
    towards: int


_DIRECTIONS = (
    _Direction(
        type_name=optype.FORWARD_SEND,
        peer=optype.FORWARD_RECV,
        compute=optype.FORWARD,
        receives=False,
        towards=1,
    ),
    _Direction(
        type_name=optype.FORWARD_RECV,
        peer=optype.FORWARD_SEND,
        compute=optype.FORWARD,
        receives=True,
        towards=-1,
    ),
    _Direction(
        type_name=optype.BACKWARD_SEND,
        peer=optype.BACKWARD_RECV,
        compute=optype.BACKWARD,
        receives=False,
        towards=-1,
    ),
    _Direction(
        type_name=optype.BACKWARD_RECV,
        peer=optype.BACKWARD_SEND,
        compute=optype.BACKWARD,
        receives=True,
        towards=1,
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairing:
    """What point-to-point operations wait for; numbers are operations of the grid.

    Attributes:
        edges: (earlier, later) pairs.
        pairs: a send and its receive.
    """

    edges: list[tuple[int, int]]
    pairs: list[tuple[int, int]]


def pair(grid: Grid, reference: ReferenceStep) -> Pairing:
    """Pairs all point-to-point operations of one step.

    Raises:
        NoReplayError: a stage has not as many as its computations need.
    """
    edges: list[tuple[int, int]] = []
    real: dict[tuple[str, int, int], list[int]] = {}
    for stage in range(grid.stages):
        for shard in range(grid.shards):
            for direction in _DIRECTIONS:
                matched = _match(grid, reference, direction, stage, shard)
                edges += _waits(direction, matched)
                real[direction.type_name, stage, shard] = [
                    op for op, computed in matched if _crosses(grid, direction, computed[-1])
                ]
    return Pairing(edges=edges, pairs=_pairs(grid, real))


Matched = list[tuple[int, tuple[int, ...]]]


def _match(
    grid: Grid, reference: ReferenceStep, direction: _Direction, stage: int, shard: int
) -> Matched:
    """Each operation that took place, with the computation before its own (if any) and its own."""
    ops = reference.ops(stage, shard, direction.type_name)
    computed = reference.ops(stage, shard, direction.compute)
    if not len(ops):
        return []
    if not len(computed):
        raise NoReplayError(f"stage {stage} has {direction.type_name} but no {direction.compute}")
    computed = computed[np.argsort(grid.order[computed], kind="stable")]
    if direction.receives:
        took_place = reference.start[ops] <= reference.start[computed].max() + _CLOCK_SLACK_SECONDS
    else:
        took_place = reference.end[ops] >= reference.end[computed].min() - _CLOCK_SLACK_SECONDS
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


def _waits(direction: _Direction, matched: Matched) -> list[tuple[int, int]]:
    """A send waits for its computation; a receive comes between two computations."""
    edges = []
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


def _pairs(grid: Grid, real: dict[tuple[str, int, int], list[int]]) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
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


def first_backward_waits(
    grid: Grid, reference: ReferenceStep, stage: int, shard: int
) -> list[tuple[int, int]]:
    """The warm-up: the first backward send and receive follow the second-last forward before it."""
    ordered: Integers = reference.ops(stage, shard, optype.FORWARD, optype.BACKWARD)
    backward = np.flatnonzero(grid.select_type(optype.BACKWARD)[ordered])
    if not len(backward) or backward[0] < 2:  # noqa: PLR2004  # two forwards, as the rule says
        return []
    ops = reference.ops(stage, shard, optype.BACKWARD_RECV, optype.BACKWARD_SEND)
    before = int(ordered[backward[0] - 2])
    return [(before, int(op)) for op in ops if grid.order[op] == 0]
