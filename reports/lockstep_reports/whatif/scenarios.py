"""Replays with some durations as recorded and the others ideal."""

from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.operations import COMMUNICATION, OPTIMIZER, Layout
from lockstep_reports.whatif.graph import Graph, build_graph
from lockstep_reports.whatif.grid import Grid
from lockstep_reports.whatif.replay import Durations, Schedule, chunks_of, replay, schedule


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Model:
    """A trace made ready to be replayed.

    Attributes:
        recorded: seconds of computation, or of transfer once all of the group had started
            [operations x replicas x steps].
        ideal: seconds that each operation's type ideally takes [operations].
        negative_transfers: how many transfers ended before the last of their group began.
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
        """The operations that end a step."""
        optimizers = np.flatnonzero(self.grid.of_type(OPTIMIZER))
        return optimizers if len(optimizers) else np.arange(len(self.ideal))

    @property
    def workers(self) -> Integers:
        """Place of each operation's rank among (stage, shard) [operations]."""
        places: Integers = self.grid.stage * self.grid.shards + self.grid.shard
        return places


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scenarios:
    """Which durations stay as recorded; the others are ideal.

    Attributes:
        ops: [scenarios x operations].
        workers: [scenarios x (stages x shards) x replicas].
    """

    ops: Flags
    workers: Flags


def make_model(grid: Grid, layout: Layout) -> Model:
    """Graph, transfers and ideal durations of a grid.

    Raises:
        NoReplayError: the trace fits no known schedule.
    """
    graph = build_graph(grid, layout)
    recorded = _without_waiting(grid, graph)
    negative = recorded < 0
    worst = float(-recorded.min(initial=0.0))
    np.maximum(recorded, 0, out=recorded)
    return Model(
        grid=grid,
        graph=graph,
        plan=schedule(graph),
        recorded=recorded,
        ideal=_ideal(grid, recorded),
        negative_transfers=int(np.count_nonzero(negative)),
        worst_negative_seconds=worst,
    )


def _without_waiting(grid: Grid, graph: Graph) -> Matrix:
    """Durations; those of communication counted from when the last of the group had started."""
    result: Matrix = np.array(grid.duration)
    end = grid.end
    sync = np.flatnonzero(graph.communicates)
    latest = np.array(grid.start[sync])
    numbers, places = np.unique(graph.group[sync], return_inverse=True)
    in_order = np.argsort(places, kind="stable")
    firsts = np.searchsorted(places[in_order], np.arange(len(numbers)))
    latest = np.maximum.reduceat(latest[in_order], firsts, axis=0)[places] if len(sync) else latest
    for together in np.unique(graph.replicas_together[sync]):
        at = np.flatnonzero(graph.replicas_together[sync] == together)
        blocks = latest[at].reshape(len(at), -1, together, latest.shape[2])
        most = np.broadcast_to(blocks.max(axis=2, keepdims=True), blocks.shape)
        latest[at] = most.reshape(len(at), *latest.shape[1:])
    result[sync] = end[sync] - latest
    return result


def _ideal(grid: Grid, recorded: Matrix) -> Matrix:
    """Mean of a computation's type, for balance costs nothing; median of a communication's."""
    ideal = np.zeros(len(recorded))
    for number, name in enumerate(grid.types):
        ops = grid.type_of == number
        if not ops.any():
            continue
        values = recorded[ops]
        middle = np.median(values) if name in COMMUNICATION else values.mean(dtype=np.float64)
        ideal[ops] = middle
    return ideal


def step_seconds(model: Model, scenarios: Scenarios) -> Matrix:
    """Duration of each step under each scenario [scenarios x steps]."""
    operations, replicas, steps = model.recorded.shape
    ends = []
    for part in chunks_of(len(scenarios.ops), operations * replicas * steps):
        durations = _durations(model, scenarios.ops[part], scenarios.workers[part])
        shape = (part.stop - part.start, replicas, steps)
        ends.append(replay(model.plan, durations, shape)[model.last].max(axis=(0, 2)))
    return np.concatenate(ends)


def step_seconds_of_one(model: Model, replica: Integers, workers: Flags) -> Matrix:
    """Duration of each step when one replica alone stays as recorded [scenarios x steps].

    All other replicas are then alike, so that a single ideal one stands for them: exact, and far
    cheaper than to replay all of them.

    Args:
        model: the trace.
        replica: place of the replica of each scenario [scenarios].
        workers: which of its ranks stay as recorded [scenarios x (stages x shards)].
    """
    operations, replicas, steps = model.recorded.shape
    lanes = min(2, replicas)
    ends = []
    for part in chunks_of(len(replica), operations * lanes * steps):
        durations = _twins(model, replica[part], workers[part], lanes)
        shape = (part.stop - part.start, lanes, steps)
        ends.append(replay(model.plan, durations, shape)[model.last].max(axis=(0, 2)))
    return np.concatenate(ends)


def ideal_times(model: Model) -> tuple[Matrix, Matrix]:
    """Begin and end of each operation in the ideal step, in seconds [operations]."""

    def durations(ops: Integers) -> Matrix:
        return model.ideal[ops][:, None, None, None]

    end = replay(model.plan, durations, (1, 1, 1))[:, 0, 0, 0]
    return end - model.ideal, end


def _durations(model: Model, kept: Flags, workers: Flags) -> Durations:
    def durations(ops: Integers) -> Matrix:
        keep = kept[:, ops].T[:, :, None] & workers[:, model.workers[ops]].swapaxes(0, 1)
        ideal = model.ideal[ops][:, None, None, None]
        return np.where(keep[..., None], model.recorded[ops][:, None], ideal)

    return durations


def _twins(model: Model, replica: Integers, workers: Flags, lanes: int) -> Durations:
    def durations(ops: Integers) -> Matrix:
        recorded = model.recorded[ops][:, replica]
        ideal = model.ideal[ops][:, None, None]
        twins = np.empty((*recorded.shape[:2], lanes, recorded.shape[2]))
        twins[:, :, -1] = ideal
        twins[:, :, 0] = np.where(workers[:, model.workers[ops]].T[..., None], recorded, ideal)
        return twins

    return durations
