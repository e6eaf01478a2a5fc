"""Runs a step again with other durations, level by level, all scenarios and steps at once."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.whatif.graph import Graph
from lockstep_reports.whatif.grid import NoReplayError

MAX_CELLS = 1 << 25


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Level:
    """Operations that need nothing but levels before.

    Attributes:
        ops: which operations [n].
        before: what each waits for [n x most]; the number of operations stands for nothing.
        members: places in ``ops`` of its group [n x most]; its own place fills up.
        across: places in ``ops`` that replicas start together, by how many replicas.
    """

    ops: Integers
    before: Integers
    members: Integers
    across: dict[int, Integers]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Schedule:
    """The levels in order; ``count`` operations in all."""

    levels: tuple[Level, ...]
    count: int


def schedule(graph: Graph) -> Schedule:
    """Sorts the operations into levels; a group stands on one level.

    Raises:
        NoReplayError: operations wait for each other in a circle.
    """
    count = len(graph.group)
    alone = np.flatnonzero(graph.group < 0)
    unit = graph.group.copy()
    unit[alone] = graph.group.max(initial=-1) + 1 + np.arange(len(alone))
    depth = _depths(unit, graph.edges)[unit]
    before: list[list[int]] = [[] for _ in range(count)]
    for earlier, later in graph.edges.tolist():
        before[later].append(earlier)
    levels = [
        _level(np.flatnonzero(depth == at), before, graph) for at in range(int(depth.max()) + 1)
    ]
    return Schedule(levels=tuple(levels), count=count)


def _depths(unit: Integers, edges: Integers) -> Integers:
    """Longest way to each unit; a round settles all units whose predecessors are settled."""
    count = int(unit.max()) + 1
    after = np.unique(unit[edges], axis=0) if len(edges) else edges
    if np.any(after[:, 0] == after[:, 1]):
        raise NoReplayError("operations of one group wait for each other")
    following: list[list[int]] = [[] for _ in range(count)]
    waits = np.bincount(after[:, 1], minlength=count).tolist() if len(after) else [0] * count
    for earlier, later in after.tolist():
        following[earlier].append(later)
    depth, ready = [0] * count, [u for u in range(count) if not waits[u]]
    settled = 0
    while ready:
        done = ready.pop()
        settled += 1
        for later in following[done]:
            depth[later] = max(depth[later], depth[done] + 1)
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    if settled < count:
        raise NoReplayError("operations wait for each other in a circle")
    return np.array(depth, np.int64)


def _level(ops: Integers, before: list[list[int]], graph: Graph) -> Level:
    nothing = len(graph.group)
    most = max(1, *(len(before[op]) for op in ops.tolist())) if len(ops) else 1
    waits = np.full((len(ops), most), nothing)
    groups: dict[int, list[int]] = {}
    for at, op in enumerate(ops.tolist()):
        waits[at, : len(before[op])] = before[op]
        if graph.group[op] >= 0:
            groups.setdefault(int(graph.group[op]), []).append(at)
    members = np.repeat(
        np.arange(len(ops))[:, None], max([len(g) for g in groups.values()] or [1]), axis=1
    )
    for group in groups.values():
        members[group, : len(group)] = group
    together = graph.replicas_together[ops]
    across = {int(n): np.flatnonzero(together == n) for n in np.unique(together) if n > 1}
    return Level(ops=ops, before=waits, members=members, across=across)


Durations = Callable[[Integers], Matrix]


def replay(plan: Schedule, durations: Durations, shape: tuple[int, int, int]) -> Matrix:
    """End of each operation [operations x scenarios x replicas x steps], from the step's begin.

    Args:
        plan: the levels.
        durations: gives [n x scenarios x replicas x steps] for some operations: the transfer of a
            communication, the duration of a computation.
        shape: scenarios, replicas, steps.
    """
    end = np.zeros((plan.count + 1, *shape))
    for level in plan.levels:
        begin = end[level.before[:, 0]]
        for column in level.before.T[1:]:
            np.maximum(begin, end[column], out=begin)
        end[level.ops] = _together(level, begin) + durations(level.ops)
    return end[:-1]


def _together(level: Level, begin: Matrix) -> Matrix:
    """When the last of each group has started."""
    started = begin
    if level.members.shape[1] > 1:
        started = begin[level.members[:, 0]]
        for column in level.members.T[1:]:
            np.maximum(started, begin[column], out=started)
    for replicas, places in level.across.items():
        part = started[places]
        size = min(replicas, part.shape[2])
        blocks = part.reshape(*part.shape[:2], -1, size, part.shape[3])
        latest = np.broadcast_to(blocks.max(axis=3, keepdims=True), blocks.shape)
        started[places] = latest.reshape(part.shape)
    return started


def chunks_of(scenarios: int, cells: int) -> list[slice]:
    """Cuts scenarios so that one replay holds at most ``MAX_CELLS`` values or one scenario."""
    each = max(1, MAX_CELLS // max(1, cells))
    return [slice(at, min(at + each, scenarios)) for at in range(0, scenarios, each)]
