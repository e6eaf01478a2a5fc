"""Replays a trace with some durations as recorded and the others ideal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.operations import COMMUNICATION, OPTIMIZER, Layout
from lockstep_reports.whatif.graph import Graph, Grid, NoReplayError, build_graph

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
    """Sorts operations into levels, a group on one; NoReplayError where they wait in a circle."""
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
    """End of each operation since the step's begin [operations, scenarios, replicas, steps].

    ``durations`` gives those of some operations, in the same way: the transfer of a communication,
    the duration of a computation. The shape is that of scenarios, replicas and steps.
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


_MAX_RESIDUE_SECONDS = 1e-2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Model:
    """A trace that is ready to be replayed.

    Attributes:
        recorded: computation, or transfer once all of the group had started: seconds,
            [operations, replicas, steps].
        ideal: what each operation's type ideally takes: seconds, [operations].
        negative_transfers: number of transfers that ended before the last of their group began:
            a figure of how well the clocks agree.
        worst_negative_seconds: by how much at most.
    """

    grid: Grid
    graph: Graph
    plan: Schedule
    recorded: Matrix
    ideal: Matrix
    negative_transfers: int
    worst_negative_seconds: float

    @property
    def last(self) -> Integers:
        """The operations that end a step [n]."""
        optimizers = np.flatnonzero(self.grid.select_type(OPTIMIZER))
        return optimizers if len(optimizers) else np.arange(len(self.ideal))

    @property
    def workers(self) -> Integers:
        """Index of each operation's rank among (stage, shard) [operations]."""
        index: Integers = self.grid.stage * self.grid.shards + self.grid.shard
        return index


class Scenario(NamedTuple):
    """Which durations stay as recorded: of some operations and [stages, shards, replicas]."""

    ops: Flags
    workers: Flags


def make_model(grid: Grid, layout: Layout) -> Model:
    """Graph, transfers and ideal durations of a grid; NoReplayError if it fits no schedule."""
    graph = build_graph(grid, layout)
    recorded = _remove_waiting(grid, graph)
    negative = recorded < 0
    worst = float(-recorded.min(initial=0.0))
    # As the published code does: what is left of the clocks stays, what cannot be theirs is none.
    recorded[recorded <= -_MAX_RESIDUE_SECONDS] = 0
    return Model(
        grid=grid,
        graph=graph,
        plan=schedule(graph),
        recorded=recorded,
        ideal=_ideal(grid, recorded),
        negative_transfers=int(np.count_nonzero(negative)),
        worst_negative_seconds=worst,
    )


def _remove_waiting(grid: Grid, graph: Graph) -> Matrix:
    """Durations; a communication's counts from when the last of its group had started.

    transfer(op) = end(op) - max(start of the group): what is left is the time from "all have
    launched" to "this one has finished", without waiting. Seconds, [operations, replicas, steps].
    """
    result: Matrix = np.array(grid.duration)
    end = grid.end
    sync = np.flatnonzero(graph.communicates)
    latest = np.array(grid.start[sync])
    numbers, group_of = np.unique(graph.group[sync], return_inverse=True)
    in_order = np.argsort(group_of, kind="stable")
    firsts = np.searchsorted(group_of[in_order], np.arange(len(numbers)))
    if len(sync):
        latest = np.maximum.reduceat(latest[in_order], firsts, axis=0)[group_of]
    joint_replicas = graph.num_joint_replicas[sync]
    for count in np.unique(joint_replicas):
        rows = np.flatnonzero(joint_replicas == count)
        blocks = latest[rows].reshape(len(rows), -1, count, latest.shape[2])
        last_start = np.broadcast_to(blocks.max(axis=2, keepdims=True), blocks.shape)
        latest[rows] = last_start.reshape(len(rows), *latest.shape[1:])
    result[sync] = end[sync] - latest
    return result


def _ideal(grid: Grid, recorded: Matrix) -> Matrix:
    """What each operation's type ideally takes: seconds, [operations].

    The mean for a computation: an ideal job does the same work, perfectly balanced. The median for
    a communication, which the flaps of a network do not move.
    """
    ideal = np.zeros(len(recorded))
    for number, name in enumerate(grid.types):
        ops = grid.type_of == number
        if not ops.any():
            continue
        values = recorded[ops]
        is_communication = name in COMMUNICATION
        ideal[ops] = np.median(values) if is_communication else values.mean(dtype=np.float64)
    return ideal


def step_seconds(model: Model, scenarios: Sequence[Scenario]) -> Matrix:
    """Duration of each step under each scenario: seconds, [scenarios, steps]."""
    replicas = model.recorded.shape[1]
    ops = np.array([scenario.ops for scenario in scenarios])
    workers = np.array([scenario.workers.reshape(-1, replicas) for scenario in scenarios])
    return _replay_parts(
        model, len(ops), replicas, lambda part: _durations(model, ops[part], workers[part])
    )


def step_seconds_of_one(model: Model, replica: Integers, workers: Flags) -> Matrix:
    """Duration of each step when only one replica stays as recorded: seconds, [scenarios, steps].

    All other replicas are then alike, so that a single ideal one represents them: exact, and far
    cheaper than a replay of all of them. Indices of replicas are [scenarios]; of their ranks those
    in ``workers`` stay as recorded [scenarios, stages * shards].
    """
    num_twins = min(2, model.recorded.shape[1])  # the replica, and an ideal one for all others
    return _replay_parts(
        model,
        len(replica),
        num_twins,
        lambda part: _twins(model, replica[part], workers[part], num_twins),
    )


def _replay_parts(
    model: Model, num_scenarios: int, replicas: int, durations_of: Callable[[slice], Durations]
) -> Matrix:
    """Duration of each step: seconds, [scenarios, steps]; as many scenarios at once as fit."""
    operations, _, steps = model.recorded.shape
    size = max(1, MAX_CELLS // max(1, operations * replicas * steps))
    ends = []
    for first in range(0, num_scenarios, size):
        part = slice(first, min(first + size, num_scenarios))
        shape = (part.stop - first, replicas, steps)
        ends.append(replay(model.plan, durations_of(part), shape)[model.last].max(axis=(0, 2)))
    return np.concatenate(ends)


def ideal_times(model: Model) -> tuple[Matrix, Matrix]:
    """Begin and end of each operation in the ideal step: seconds from its begin, [operations]."""

    def durations(ops: Integers) -> Matrix:
        return model.ideal[ops][:, None, None, None]

    end = replay(model.plan, durations, (1, 1, 1))[:, 0, 0, 0]
    return end - model.ideal, end


def _durations(model: Model, recorded_ops: Flags, workers: Flags) -> Durations:
    """Durations under scenarios; workers are [scenarios, stages * shards, replicas]."""

    def durations(ops: Integers) -> Matrix:
        of_workers = workers[:, model.workers[ops]].swapaxes(0, 1)
        is_recorded = recorded_ops[:, ops].T[:, :, None] & of_workers
        ideal = model.ideal[ops][:, None, None, None]
        return np.where(is_recorded[..., None], model.recorded[ops][:, None], ideal)

    return durations


def _twins(model: Model, replica: Integers, workers: Flags, num_twins: int) -> Durations:
    """Durations of the recorded replica and of its ideal twin, if there is one."""

    def durations(ops: Integers) -> Matrix:
        recorded = model.recorded[ops][:, replica]
        ideal = model.ideal[ops][:, None, None]
        twins = np.empty((*recorded.shape[:2], num_twins, recorded.shape[2]))
        # With one replica only, the second line overwrites the first.
        twins[:, :, -1] = ideal
        twins[:, :, 0] = np.where(workers[:, model.workers[ops]].T[..., None], recorded, ideal)
        return twins

    return durations


def recorded_only(
    model: Model, *, ops: Flags | None = None, workers: Flags | None = None
) -> Scenario:
    """A scenario: as recorded only some [operations], or some [stages, shards, replicas]."""
    return Scenario(
        np.ones(len(model.ideal), bool) if ops is None else ops,
        np.ones(model.grid.rank.shape, bool) if workers is None else workers,
    )
