"""Replays a trace with some durations as recorded and the others ideal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.operations import COMMUNICATION, OPTIMIZER, Layout
from lockstep_reports.whatif.graph import Graph, build_graph
from lockstep_reports.whatif.grid import Grid
from lockstep_reports.whatif.replay import MAX_CELLS, Durations, Schedule, replay, schedule

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
    """Which durations stay as recorded, those of some operations of some workers; ideal others.

    Attributes:
        ops: [operations].
        workers: [stages, shards, replicas].
    """

    ops: Flags
    workers: Flags


def make_model(grid: Grid, layout: Layout) -> Model:
    """Graph, transfers and ideal durations of a grid.

    Raises:
        NoReplayError: the trace fits no known schedule.
    """
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
    cheaper than a replay of all of them.

    Args:
        model: the trace.
        replica: index of the replica of each scenario [scenarios].
        workers: which of its ranks stay as recorded [scenarios, stages * shards].
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
