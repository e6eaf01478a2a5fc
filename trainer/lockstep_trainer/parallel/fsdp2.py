"""Fully sharded data parallel: parameters, gradients and optimizer state are sharded.

Parameters are gathered for use. With several replicas (``--dp``) it is HSDP: sharded inside a
replica, averaged among the replicas.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT
from lockstep_trainer.parallel.parallel_model import ParallelModel, compile_blocks

DATA_AXES = ("dp", "fsdp")


def fully_sharded(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """The model by FSDP2, each block gathered separately."""
    mesh = layout.device_mesh(world.device, DATA_AXES)
    compile_blocks(gpt, config)
    shard_parameters(gpt, config, data_mesh(mesh, layout))
    return ParallelModel(gpt, config, gradient_sync=gradient_sync_of(gpt))


def data_mesh(mesh: DeviceMesh, layout: Layout) -> DeviceMesh:
    """The axes whose ranks see different data; 2-D with several replicas, for HSDP."""
    return mesh[DATA_AXES] if layout.dp > 1 else mesh["fsdp"]


def shard_parameters(gpt: GPT, config: TrainConfig, mesh: DeviceMesh) -> None:
    """Shards the model in place; gradients are summed in float32 whatever the compute precision."""
    compute = torch.bfloat16 if config.dtype == "bfloat16" else None
    shard = partial(
        fully_shard,
        mesh=mesh,
        reshard_after_forward=not config.keep_gathered,
        mp_policy=MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32),
    )
    # Blocks first: fully_shard gives the root only the parameters that no child has taken.
    for block in gpt.blocks.values():
        shard(block)
    shard(gpt)


def gradient_sync_of(gpt: GPT) -> Callable[[bool], AbstractContextManager[None]]:
    """A context for one batch, in which gradients are reduced if the batch is the step's last."""

    def gradient_sync(is_last: bool) -> AbstractContextManager[None]:
        cast(FSDPModule, gpt).set_requires_gradient_sync(is_last)
        return nullcontext()

    return gradient_sync
