"""The one model of an operation trace: one row per operation, columns as arrays [rows]."""

from dataclasses import dataclass, field

from lockstep_reports.arrays import Integers, Seconds

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
IN_ORDER = (
    PARAMS_SYNC,
    GRADS_SYNC,
    ALL_TO_ALL,
    TENSOR_ALL_REDUCE,
    TENSOR_ALL_GATHER,
    TENSOR_REDUCE_SCATTER,
)
OVER_TENSOR = (TENSOR_ALL_REDUCE, TENSOR_ALL_GATHER, TENSOR_REDUCE_SCATTER)
COMMUNICATION = (
    *POINT_TO_POINT,
    *REPLICA_COLLECTIVES,
    *IN_ORDER,
    LAYERNORM_GRADS,
    EMBEDDING_GRADS,
    CLIP,
)
KNOWN_TYPES = (*COMPUTE, *COMMUNICATION, OPTIMIZER, GARBAGE)


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
    """Operation rows of a job, as the published straggler traces have them.

    Attributes:
        types: names of the operation types; ``type_of`` holds indices into it [rows].
        replica: data-parallel coordinate [rows].
        stage: pipeline coordinate [rows].
        shard: tensor-parallel coordinate [rows]; zero when only one is recorded.
        rank: global rank [rows].
        step: step number [rows].
        start: seconds on a clock that all rows of the step share [rows].
        duration: seconds [rows].
        order: index among the operations of that type in that step on that rank [rows].
        chunk: model chunk on the rank, -1 where it has none [rows].
        model_chunk: the same counted over the whole model, -1 where it has none [rows].
        batch: micro-batch, -1 where it has none [rows].
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
