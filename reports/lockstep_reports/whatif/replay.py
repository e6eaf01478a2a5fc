"""Runs a step again with other durations, level by level, all scenarios and steps at once.

launch(op) = max(end of what it waits for). A computation ends at launch + duration; a communication
at max(launch of its group) + transfer. Launch delays are 0 (Lin et al., replay).
"""

from collections.abc import Callable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np

from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.whatif.graph import Graph
from lockstep_reports.whatif.grid import NoReplayError

MAX_CELLS = 1 << 25  # 256 MiB of float64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Level:
    """Operations that wait for earlier levels only.

    Attributes:
        ops: the operations [n].
        before: what each waits for [n, widest]; rows are filled up with the number of all
            operations, whose end is zero.
        members: indices into ``ops`` of its group [n, widest]; filled up with its own index.
        across: indices into ``ops`` that replicas start jointly, by how many replicas.
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
    # A group moves as one unit, any other operation is a unit of its own.
    ungrouped = np.flatnonzero(graph.group < 0)
    unit = graph.group.copy()
    unit[ungrouped] = graph.group.max(initial=-1) + 1 + np.arange(len(ungrouped))
    depth = _depths(unit, graph.edges)[unit]
    before: list[list[int]] = [[] for _ in range(count)]
    for earlier, later in graph.edges.tolist():
        before[later].append(earlier)
    levels = [
        _level(np.flatnonzero(depth == number), before, graph)
        for number in range(int(depth.max()) + 1)
    ]
    return Schedule(levels=tuple(levels), count=count)


def _depths(unit: Integers, edges: Integers) -> Integers:
    """Length of the longest path to each unit [units]; units are those of [operations]."""
    after = unit[edges]
    if np.any(after[:, 0] == after[:, 1]):
        raise NoReplayError("operations of one group wait for each other")
    depth = np.zeros(int(unit.max()) + 1, np.int64)
    sorter = TopologicalSorter[int](dict.fromkeys(range(len(depth)), ()))
    for earlier, later in after.tolist():
        sorter.add(later, earlier)
    try:
        sorter.prepare()
    except CycleError as error:
        raise NoReplayError("operations wait for each other in a circle") from error
    level = 0
    while ready := sorter.get_ready():
        depth[list(ready)] = level
        sorter.done(*ready)
        level += 1
    return depth


def _level(ops: Integers, before: list[list[int]], graph: Graph) -> Level:
    filler = len(graph.group)
    widest = max(1, *(len(before[op]) for op in ops.tolist())) if len(ops) else 1
    waits = np.full((len(ops), widest), filler)
    groups: dict[int, list[int]] = {}
    for index, op in enumerate(ops.tolist()):
        waits[index, : len(before[op])] = before[op]
        if graph.group[op] >= 0:
            groups.setdefault(int(graph.group[op]), []).append(index)
    members = np.repeat(
        np.arange(len(ops))[:, None], max([len(g) for g in groups.values()] or [1]), axis=1
    )
    for group in groups.values():
        members[group, : len(group)] = group
    joint = graph.num_joint_replicas[ops]
    across = {int(n): np.flatnonzero(joint == n) for n in np.unique(joint) if n > 1}
    return Level(ops=ops, before=waits, members=members, across=across)


Durations = Callable[[Integers], Matrix]


def replay(plan: Schedule, durations: Durations, shape: tuple[int, int, int]) -> Matrix:
    """End of each operation: seconds from the step's begin.

    Args:
        plan: the levels.
        durations: gives the seconds of some operations [n, scenarios, replicas, steps]: the
            transfer of a communication, the duration of a computation.
        shape: numbers of scenarios, replicas, steps.

    Returns:
        Seconds, [operations, scenarios, replicas, steps].
    """
    # One row more than operations: the filler of ``Level.before``, which ends at zero.
    end = np.zeros((plan.count + 1, *shape))
    for level in plan.levels:
        begin = end[level.before[:, 0]]
        for column in level.before.T[1:]:
            np.maximum(begin, end[column], out=begin)
        end[level.ops] = _joint_start(level, begin) + durations(level.ops)
    return end[:-1]


def _joint_start(level: Level, begin: Matrix) -> Matrix:
    """When the last of each operation's group has started: seconds, as ``begin``, when each could.

    Both are [n, scenarios, replicas, steps].
    """
    started = begin
    if level.members.shape[1] > 1:
        started = begin[level.members[:, 0]]
        for column in level.members.T[1:]:
            np.maximum(started, begin[column], out=started)
    for replicas, indices in level.across.items():
        part = started[indices]
        size = min(replicas, part.shape[2])
        blocks = part.reshape(*part.shape[:2], -1, size, part.shape[3])
        latest = np.broadcast_to(blocks.max(axis=3, keepdims=True), blocks.shape)
        started[indices] = latest.reshape(part.shape)
    return started
