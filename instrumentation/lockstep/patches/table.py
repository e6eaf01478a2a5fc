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

_Point = InstrumentationPoint
_MODULE = "torch.nn:Module"
_DCP = "torch.distributed.checkpoint"
_SCHEDULES = "torch.distributed.pipelining.schedules"
_LOADERS = "torch.utils.data.dataloader"
_FUNCTIONAL = "torch:ops._c10d_functional"
_WAIT_OPERATOR = f"{_FUNCTIONAL}.wait_tensor"
_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_TENSOR_WAITS_LOST = "waits of tensor-parallel layers, experts and compiled code count as work"
_SHARD_WAITS_LOST = "on a GPU the waits of FSDP2 count as work"
_NEW = {"all_gather_single", "reduce_scatter_single"}  # not in each torch

# fmt: off
DDP_FORWARD = _Point(
    "ddp", "torch.nn.parallel:DistributedDataParallel", "_pre_forward",
    "DDP's forward is marked by a hook, which costs more", layers.wrap_pre_forward, ("self", "inputs", "kwargs"))
COLLECTIVES = tuple(
    _Point("collectives", "torch.distributed", name, "waits in a collective count as work",
           collectives.wrap_collective(kind), is_optional=name in _NEW)
    for name, kind in collectives.KINDS.items())
# Eager code calls an operator's packet, compiled code its overload; each has an `_op` of its own.
_FUNCTIONAL_LAUNCHES = tuple(
    _Point("functional", f"{namespace}.{name}{overload}", "_op", _TENSOR_WAITS_LOST, wrap(kind), requires=(f"{_WAIT_OPERATOR}._op",))
    for namespace, kinds, wrap in (
        (_FUNCTIONAL, functional_collectives.KINDS, functional_collectives.wrap_launch),
        (f"{_FUNCTIONAL}_autograd", functional_collectives.KINDS_WITH_GRAPH, functional_collectives.wrap_launch_with_graph))
    for name, kind in kinds.items()
    for overload in ("", ".default"))
_SAVES = tuple(
    _Point("saves", owner, name, "files that are saved outside monitor.checkpoint count as other",
           saves.wrap_save, is_optional=owner != "torch.serialization")
    for owner, names in (
        ("torch.serialization", ("save",)), ("pickle", ("dump",)), ("joblib", ("dump",)), ("numpy", ("savez", "savez_compressed")),
        ("safetensors.torch", ("save_file",)), ("safetensors.numpy", ("save_file",)), (f"{_DCP}.state_dict_saver", ("save", "async_save")))
    for name in names)

REPLACED: tuple[InstrumentationPoint, ...] = (
    _Point("backward", "torch.autograd", "backward",
           "backwards are marked by a hook on the graph, which costs more", backward.wrap_backward),
    DDP_FORWARD,
    *COLLECTIVES,
    _Point("collectives", "torch._C._distributed_c10d:Work", "wait",
           "waits for asynchronous collectives, isend and irecv count as work", collectives.wrap_wait),
    *(_Point("functional", f"{_WAIT_OPERATOR}{overload}", "_op", _TENSOR_WAITS_LOST, functional_collectives.wrap_wait)
      for overload in ("", ".default")),
    *_FUNCTIONAL_LAUNCHES,
    _Point("fsdp", _FSDP, "foreach_all_gather_copy_out",
           _SHARD_WAITS_LOST, fsdp.wrap_copy_out, ("all_gather_result", "fsdp_params", "group")),
    _Point("fsdp", _FSDP, "foreach_reduce",
           _SHARD_WAITS_LOST, fsdp.wrap_reduce, ("fsdp_params", "unsharded_grads", "reduce_scatter_group")),
    *(_Point("fsdp", f"{_FSDP}:FSDPParamGroup", name, _SHARD_WAITS_LOST, fsdp.wrap_group_wait, ("self",))
      for name in ("_wait_for_post_backward", "finalize_backward")),
    _Point("graphs", "torch.cuda:CUDAGraph", "replay",
           "a step that is a CUDA graph counts as other", loop_calls.wrap_replay, ("self",)),
    _Point("groups", "torch.distributed.distributed_c10d", "init_process_group",
           "a rank that attaches before it has a page from its first phase on", loop_calls.wrap_initialisation),
    _Point("evaluations", _MODULE, "eval",
           "evaluations outside monitor.phase count as forward", loop_calls.wrap_eval, ("self",)),
    _Point("loaders", f"{_LOADERS}:_BaseDataLoaderIter", "__next__",
           "waits for data count as other where monitor.prepare does not time them", loop_calls.wrap_next, ("self",)),
    _Point("loaders", f"{_LOADERS}:_MultiProcessingDataLoaderIter", "__init__",
           "a slow fetch is told from the step in which its batches are used up", loop_calls.wrap_workers, ("self", "loader")),
    *_SAVES,
    _Point("saves", f"{_DCP}.state_dict_loader", "load",
           "restores outside monitor.restore count as other", saves.wrap_load, is_optional=True),
    _Point("pipeline", _SCHEDULES, "_batch_p2p",
           "a pipeline's transfers have no names", pipeline.wrap_start_transfers, ("p2p_ops",)),
)

STAGE_METHODS = tuple(
    _Point("stage", "torch.distributed.pipelining.stage:_PipelineStageBase", name, "a pipeline's chunks and transfers have no names")
    for name in (*pipeline.CHUNKS, *pipeline.TRANSFERS))
COMPILED_CALL = _Point("stage", _MODULE, "_compiled_call_impl", "the forward of a model compiled in place is not marked")

TABLE: tuple[InstrumentationPoint, ...] = (
    *REPLACED,
    *STAGE_METHODS,
    _Point("stage", f"{_SCHEDULES}:_PipelineSchedule", "step",
           "the last phase of a pipeline's step goes on until the optimizer"),
    COMPILED_CALL,
    *READ,
)
