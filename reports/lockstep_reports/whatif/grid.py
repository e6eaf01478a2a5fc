"""Lays operation rows out as a dense block: operations of a step x replicas x steps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep_reports.arrays import Integers, Seconds
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.wording import plural

_COMMON_SHARE = 0.5
_OF_AN_OPERATION = ("type_of", "order", "stage", "shard", "chunk", "model_chunk", "batch")
_MOST_CELLS_A_ROW, _FEW_CELLS = 16, 1 << 20


class NoReplayError(ValueError):
    """A trace that cannot be replayed; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grid:
    """All complete steps of a trace; an operation is one (type, order, place on the pipeline).

    Attributes:
        types: names of the types; ``type_of`` holds places in it [operations].
        order, stage, shard, chunk, model_chunk, batch: of each operation [operations].
        rank: global rank [stages x shards x replicas]; -1 where none was recorded.
        replicas: data-parallel coordinates [replicas].
        steps: step numbers [steps].
        start: seconds from the step's begin [operations x replicas x steps].
        duration: seconds [operations x replicas x steps].
        notes: sentences about what was left out.
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
        """End of each operation, in seconds from the step's begin."""
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

    def of_type(self, *names: str) -> NDArray[np.bool_]:
        """Which operations are of one of the types [operations]."""
        wanted = [number for number, name in enumerate(self.types) if name in names]
        return np.isin(self.type_of, wanted)


def lay_out(trace: OperationTrace) -> Grid:
    """The trace's complete steps as one block.

    Rare operations, replicas with gaps in most steps and steps with a gap are left out and told.

    Raises:
        NoReplayError: nothing complete is left.
    """
    notes: list[str] = []
    stages, shards = int(trace.stage.max()) + 1, int(trace.shard.max()) + 1
    orders = int(trace.order.max()) + 1
    key = ((trace.type_of * orders + trace.order) * stages + trace.stage) * shards + trace.shard
    keys, node = _ranked(key)
    replicas, replica = _ranked(trace.replica)
    steps, step = _ranked(trace.step)
    shape = (len(keys), len(replicas), len(steps))
    if np.prod(shape) > _MOST_CELLS_A_ROW * len(node) + _FEW_CELLS:
        raise NoReplayError("most operations are missing in most steps")
    cell = (node * shape[1] + replica) * shape[2] + step
    count = np.bincount(cell, minlength=int(np.prod(shape))).reshape(shape)
    if twice := int(np.count_nonzero(count > 1)):
        notes.append(f"{plural(twice, 'operation')} recorded more than once; the last row counts.")
    nodes, kept, whole = _complete(count > 0, notes)
    chosen = _a_row_of_each(node, shape[0])[nodes]
    rank = np.full((stages, shards, len(replicas)), -1, np.int64)
    rank[trace.stage, trace.shard, replica] = trace.rank
    block = np.ix_(nodes, kept, whole)
    start, duration = (_block(v, cell, shape)[block] for v in (trace.start, trace.duration))
    start -= start.min(axis=(0, 1))
    return Grid(
        types=trace.types,
        **{name: getattr(trace, name)[chosen] for name in _OF_AN_OPERATION},
        rank=rank[:, :, kept],
        replicas=replicas[kept],
        steps=steps[whole],
        start=start,
        duration=duration,
        notes=tuple(notes),
    )


def _a_row_of_each(node: Integers, count: int) -> Integers:
    """The first row of each operation [operations]."""
    first = np.zeros(count, np.int64)
    first[node[::-1]] = np.arange(len(node))[::-1]
    return first


def _ranked(values: Integers) -> tuple[Integers, Integers]:
    """Distinct values ascending, and the place of each value among them, without a sort of all."""
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > 4 * len(values) + 1024:
        distinct, places = np.unique(values, return_inverse=True)
        return distinct, places
    present = np.zeros(span, bool)
    present[values - low] = True
    lookup = np.cumsum(present) - 1
    return np.flatnonzero(present) + low, lookup[values - low]


def _block(values: Seconds, cell: Integers, shape: tuple[int, int, int]) -> Seconds:
    block = np.zeros(shape, values.dtype)
    block.reshape(-1)[cell] = values
    return block


def _complete(there: NDArray[np.bool_], notes: list[str]) -> tuple[Integers, Integers, Integers]:
    """Operations, replicas and steps such that each has every other."""
    nodes = np.flatnonzero(there.mean(axis=(1, 2)) >= _COMMON_SHARE)
    if rare := len(there) - len(nodes):
        notes.append(f"{plural(rare, 'operation')} that most steps lack are not replayed.")
    there = there[nodes]
    kept = np.flatnonzero(there.all(axis=0).mean(axis=1) >= _COMMON_SHARE)
    if gone := there.shape[1] - len(kept):
        notes.append(f"{plural(gone, 'replica')} with gaps in most steps are not replayed.")
    whole = np.flatnonzero(there[:, kept].all(axis=(0, 1)))
    if lost := there.shape[2] - len(whole):
        notes.append(f"{plural(lost, 'step')} with operations missing are not replayed.")
    if not (len(nodes) and len(kept) and len(whole)):
        raise NoReplayError("no step is recorded completely: operations are missing in each")
    return nodes, kept, whole
