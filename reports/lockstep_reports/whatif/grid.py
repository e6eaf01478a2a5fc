"""Lays operation rows out as a dense block [operations, replicas, steps]."""

from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Seconds
from lockstep_reports.recording.operations import OperationTrace
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
        steps: step numbers [steps].
        start: seconds from the step's begin, [operations, replicas, steps].
        duration: seconds, [operations, replicas, steps].
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
