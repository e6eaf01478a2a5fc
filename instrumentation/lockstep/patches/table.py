"""The table: each attribute of torch that is replaced or relied on, in one list.

Read this list before a move to a new torch; ``test_patches.py`` of the strategies checks it.
"""

from lockstep.patches import (
    backward,
    collectives,
    fsdp,
    functional_collectives,
    layers,
    loop_calls,
    pipeline,
    saves,
)
from lockstep.patches.points import READ, InstrumentationPoint

_DCP = "torch.distributed.checkpoint"
_SCHEDULES = "torch.distributed.pipelining.schedules"
_FUNCTIONAL = "torch:ops._c10d_functional"
_AUTOGRAD_NAMESPACE = "torch:ops._c10d_functional_autograd"
_WAIT_OPERATOR = f"{_FUNCTIONAL}.wait_tensor"
_TENSOR_WAITS_LOST = "waits of tensor-parallel layers, experts and compiled code count as work"

BACKWARD = InstrumentationPoint(
    group="backward",
    owner="torch.autograd",
    attribute="backward",
    without_it="backwards are marked by a hook on the graph, which costs more",
    wrap=backward.wrap_backward,
)
DDP_FORWARD = InstrumentationPoint(
    group="ddp",
    owner="torch.nn.parallel:DistributedDataParallel",
    attribute="_pre_forward",
    without_it="DDP's forward is marked by a hook, which costs more",
    wrap=layers.wrap_pre_forward,
    parameters=("self", "inputs", "kwargs"),
)
COLLECTIVES = tuple(
    InstrumentationPoint(
        group="collectives",
        owner="torch.distributed",
        attribute=name,
        without_it="waits in a collective count as work",
        wrap=collectives.wrap_collective(kind),
        is_optional=name in {"all_gather_single", "reduce_scatter_single"},
    )
    for name, kind in collectives.KINDS.items()
)
HANDLE_WAIT = InstrumentationPoint(
    group="collectives",
    owner="torch._C._distributed_c10d:Work",
    attribute="wait",
    without_it="waits for asynchronous collectives, isend and irecv count as work",
    wrap=collectives.wrap_wait,
)
# Eager code calls the packet, compiled code its overload; each has an `_op` of its own.
FUNCTIONAL_WAIT = tuple(
    InstrumentationPoint(
        group="functional",
        owner=owner,
        attribute="_op",
        without_it=_TENSOR_WAITS_LOST,
        wrap=functional_collectives.wrap_wait,
    )
    for owner in (_WAIT_OPERATOR, f"{_WAIT_OPERATOR}.default")
)
FUNCTIONAL_LAUNCHES = tuple(
    InstrumentationPoint(
        group="functional",
        owner=f"{namespace}.{name}{overload}",
        attribute="_op",
        without_it=_TENSOR_WAITS_LOST,
        wrap=wrap(kind),
        requires=(f"{_WAIT_OPERATOR}._op",),
    )
    for namespace, kinds, wrap in (
        (_FUNCTIONAL, functional_collectives.KINDS, functional_collectives.wrap_launch),
        (
            _AUTOGRAD_NAMESPACE,
            functional_collectives.KINDS_WITH_GRAPH,
            functional_collectives.wrap_launch_with_graph,
        ),
    )
    for name, kind in kinds.items()
    for overload in ("", ".default")
)
_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_SHARD_WAITS_LOST = "on a GPU the waits of FSDP2 count as work"
FSDP_WAITS = (
    InstrumentationPoint(
        group="fsdp",
        owner=_FSDP,
        attribute="foreach_all_gather_copy_out",
        without_it=_SHARD_WAITS_LOST,
        wrap=fsdp.wrap_copy_out,
        parameters=("all_gather_result", "fsdp_params", "group"),
    ),
    InstrumentationPoint(
        group="fsdp",
        owner=_FSDP,
        attribute="foreach_reduce",
        without_it=_SHARD_WAITS_LOST,
        wrap=fsdp.wrap_reduce,
        parameters=("fsdp_params", "unsharded_grads", "reduce_scatter_group"),
    ),
    *(
        InstrumentationPoint(
            group="fsdp",
            owner=f"{_FSDP}:FSDPParamGroup",
            attribute=name,
            without_it=_SHARD_WAITS_LOST,
            wrap=fsdp.wrap_group_wait,
            parameters=("self",),
        )
        for name in ("_wait_for_post_backward", "finalize_backward")
    ),
)
GRAPH_REPLAY = InstrumentationPoint(
    group="graphs",
    owner="torch.cuda:CUDAGraph",
    attribute="replay",
    without_it="a step that is a CUDA graph counts as other",
    wrap=loop_calls.wrap_replay,
    parameters=("self",),
)
GROUP = InstrumentationPoint(
    group="groups",
    owner="torch.distributed.distributed_c10d",
    attribute="init_process_group",
    without_it="a rank that attaches before it has a page from its first phase on",
    wrap=loop_calls.wrap_initialisation,
)
EVALUATION = InstrumentationPoint(
    group="evaluations",
    owner="torch.nn:Module",
    attribute="eval",
    without_it="evaluations outside monitor.phase count as forward",
    wrap=loop_calls.wrap_eval,
    parameters=("self",),
)
LOADER_NEXT = InstrumentationPoint(
    group="loaders",
    owner="torch.utils.data.dataloader:_BaseDataLoaderIter",
    attribute="__next__",
    without_it="waits for data count as other where monitor.prepare does not time them",
    wrap=loop_calls.wrap_next,
    parameters=("self",),
)
LOADER_WORKERS = InstrumentationPoint(
    group="loaders",
    owner="torch.utils.data.dataloader:_MultiProcessingDataLoaderIter",
    attribute="__init__",
    without_it="a slow fetch is told from the step in which its batches are used up",
    wrap=loop_calls.wrap_workers,
    parameters=("self", "loader"),
)
SAVES = tuple(
    InstrumentationPoint(
        group="saves",
        owner=owner,
        attribute=attribute,
        without_it="files that are saved outside monitor.checkpoint count as other",
        wrap=saves.wrap_save,
        is_optional=owner != "torch.serialization",
    )
    for owner, attribute in (
        ("torch.serialization", "save"),
        ("pickle", "dump"),
        ("numpy", "savez"),
        ("numpy", "savez_compressed"),
        ("safetensors.torch", "save_file"),
        ("safetensors.numpy", "save_file"),
        ("joblib", "dump"),
        (f"{_DCP}.state_dict_saver", "save"),
        (f"{_DCP}.state_dict_saver", "async_save"),
    )
)
LOAD = InstrumentationPoint(
    group="saves",
    owner=f"{_DCP}.state_dict_loader",
    attribute="load",
    without_it="restores outside monitor.restore count as other",
    wrap=saves.wrap_load,
    is_optional=True,
)
PIPELINE_TRANSFERS = InstrumentationPoint(
    group="pipeline",
    owner=_SCHEDULES,
    attribute="_batch_p2p",
    without_it="a pipeline's transfers have no names",
    wrap=pipeline.wrap_start_transfers,
    parameters=("p2p_ops",),
)
REPLACED: tuple[InstrumentationPoint, ...] = (
    BACKWARD,
    DDP_FORWARD,
    *COLLECTIVES,
    HANDLE_WAIT,
    *FUNCTIONAL_WAIT,
    *FUNCTIONAL_LAUNCHES,
    *FSDP_WAITS,
    GRAPH_REPLAY,
    GROUP,
    EVALUATION,
    LOADER_NEXT,
    LOADER_WORKERS,
    *SAVES,
    LOAD,
    PIPELINE_TRANSFERS,
)

STAGE_METHODS = tuple(
    InstrumentationPoint(
        group="stage",
        owner="torch.distributed.pipelining.stage:_PipelineStageBase",
        attribute=name,
        without_it="a pipeline's chunks and transfers have no names",
    )
    for name in (*pipeline.CHUNKS, *pipeline.TRANSFERS)
)
SCHEDULE_STEP = InstrumentationPoint(
    group="stage",
    owner=f"{_SCHEDULES}:_PipelineSchedule",
    attribute="step",
    without_it="the last phase of a pipeline's step goes on until the optimizer",
)
COMPILED_CALL = InstrumentationPoint(
    group="stage",
    owner="torch.nn:Module",
    attribute="_compiled_call_impl",
    without_it="the forward of a model compiled in place is not marked",
)

TABLE: tuple[InstrumentationPoint, ...] = (
    *REPLACED,
    *STAGE_METHODS,
    SCHEDULE_STEP,
    COMPILED_CALL,
    *READ,
)
