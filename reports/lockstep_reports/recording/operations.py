"""The one model of an operation trace, a row per operation, and the steps that follow from it."""

from dataclasses import dataclass, field

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports.arrays import Integers, Matrix, Seconds
from lockstep_reports.recording.steps import Member, Steps

FORWARD, BACKWARD = "forward-compute", "backward-compute"
FORWARD_SEND, FORWARD_RECV = "forward-send", "forward-recv"
BACKWARD_SEND, BACKWARD_RECV = "backward-send", "backward-recv"
PARAMS_GATHER, GRADS_SCATTER = "params-all-gather", "grads-reduce-scatter"
SEPARATE_GRADS = "separate-grads-all-reduce"
LAYERNORM_GRADS, EMBEDDING_GRADS = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, GARBAGE = "optimizer-clip-main-grad", "optimizer", "gc"

COMPUTE = (FORWARD, BACKWARD)
POINT_TO_POINT = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)
REPLICA_COLLECTIVES = (PARAMS_GATHER, GRADS_SCATTER, SEPARATE_GRADS)
# Types that our own sharded, tensor-parallel and expert-parallel jobs record in addition; the
# published traces have none of them.
PARAMS_SYNC, GRADS_SYNC = "params-sync", "grads-sync"
ALL_TO_ALL, TENSOR_ALL_REDUCE = "all_to_all", "tensor-all-reduce"
TENSOR_ALL_GATHER, TENSOR_REDUCE_SCATTER = "tensor-all-gather", "tensor-reduce-scatter"
ORDERED_TYPES = (
    PARAMS_SYNC,
    GRADS_SYNC,
    ALL_TO_ALL,
    TENSOR_ALL_REDUCE,
    TENSOR_ALL_GATHER,
    TENSOR_REDUCE_SCATTER,
)
TENSOR_TYPES = (TENSOR_ALL_REDUCE, TENSOR_ALL_GATHER, TENSOR_REDUCE_SCATTER)
COMMUNICATION = (
    *POINT_TO_POINT,
    *REPLICA_COLLECTIVES,
    *ORDERED_TYPES,
    LAYERNORM_GRADS,
    EMBEDDING_GRADS,
    CLIP,
)
KNOWN_TYPES = (*COMPUTE, *COMMUNICATION, OPTIMIZER, GARBAGE)
# A step that lasts so many median steps longer than its busiest rank worked has a wrong time: a
# clock jumped in it, or an operation was written with an impossible start.
IDLE_STEPS = 2.0
_PHASE_OF = {FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer", GARBAGE: "other"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How the job is divided over its ranks; sizes of the whole job.

    Attributes:
        replicas: data-parallel size.
        stages: pipeline size.
        sequence: sequence-parallel size inside data parallelism.
        tensor: tensor-parallel size.
        chunks: virtual stages of a rank.
        experts: replicas that share one set of experts; 0 when all do.
    """

    replicas: int
    stages: int
    sequence: int = 1
    tensor: int = 1
    chunks: int = 1
    experts: int = 0
    world_size: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OperationTrace:
    """Operation rows of a job [rows], as the published straggler traces have them.

    Attributes:
        types: names of the operation types; ``type_of`` holds indices into it.
        replica: data-parallel coordinate; ``stage`` is the pipeline's, ``shard`` that of tensors,
            zero when only one is recorded.
        rank: global rank.
        start: seconds on a clock that all rows of the step share.
        order: index among the operations of that type in that step on that rank.
        chunk: model chunk on the rank, -1 where it has none; ``model_chunk`` counts over the model.
        batch: micro-batch, -1 where it has none.
        nodes: names of the nodes by rank; without ranks whose node is unknown.
        notes: sentences for the reader about what is missing.
    """

    name: str
    layout: Layout
    types: tuple[str, ...]
    type_of: Integers
    replica: Integers
    stage: Integers
    shard: Integers
    rank: Integers
    step: Integers
    start: Seconds
    duration: Seconds
    order: Integers
    chunk: Integers
    model_chunk: Integers
    batch: Integers
    nodes: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def end(self) -> Seconds:
        """End of each operation: seconds, [rows]."""
        end: Seconds = self.start + self.duration
        return end


def steps_of(trace: OperationTrace) -> Steps:
    """The steps of a trace; a step lasts from its first start to its last end on any rank.

    Wall clock and losses are not recorded there and stay unknown (NaN); so does the duration of a
    step whose times cannot be true.
    """
    ranks, row = np.unique(trace.rank, return_inverse=True)
    numbers, column = np.unique(trace.step, return_inverse=True)
    shape = (len(ranks), len(numbers))
    cell = row * shape[1] + column
    is_recorded = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape) > 0
    step_seconds = _step_seconds(trace, column, len(numbers))
    busiest = _sums(trace.duration, cell, shape).max(axis=0)
    is_impossible = step_seconds > busiest + IDLE_STEPS * np.median(step_seconds)
    possible_seconds = np.where(is_impossible, np.nan, step_seconds)
    seconds = np.where(is_recorded, np.broadcast_to(possible_seconds, shape), np.nan)
    phases = {phase: np.where(is_recorded, 0.0, np.nan) for phase in STEP_PHASES}
    for name, phase in _PHASE_OF.items():
        if name in trace.types:
            rows = trace.type_of == trace.types.index(name)
            phases[phase] += _sums(trace.duration[rows], cell[rows], shape)
    own = np.sum([phases[phase] for phase in dict.fromkeys(_PHASE_OF.values())], axis=0)
    phases["sync"] = np.maximum(seconds - own, 0.0)
    return Steps(
        job_id=trace.name,
        attempt=0,
        world_size=max(trace.layout.world_size, len(ranks)),
        members=tuple(Member(rank=rank, node=trace.nodes.get(rank, "")) for rank in ranks.tolist()),
        numbers=numbers,
        seconds=seconds,
        phases=phases,
        notes=trace.notes,
    )


def _step_seconds(trace: OperationTrace, column: Integers, count: int) -> Matrix:
    """From the first start to the last end on any rank: seconds, [steps]; columns are [rows]."""
    first, last = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(first, column, trace.start)
    np.maximum.at(last, column, trace.end)
    seconds: Matrix = last - first
    return seconds


def _sums(values: Seconds, cell: Integers, shape: tuple[int, int]) -> Matrix:
    """Sums of row values [rows] by cell of the matrix [ranks, steps]."""
    total = np.bincount(cell, weights=values, minlength=shape[0] * shape[1])
    return total.astype(np.float64).reshape(shape)
