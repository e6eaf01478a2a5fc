"""Fully sharded: parameters, gradients and optimizer state lie in shards and are gathered to use.

With more than one copy (``--dp``) it is HSDP: sharded inside a copy, averaged among the copies.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT
from lockstep_trainer.parallel.shared import SharedModel, WholeModel, compile_blocks
from lockstep_trainer.world import World

DATA_AXES = ("dp", "fsdp")


def fully_sharded(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> SharedModel:
    """The model by FSDP2, each block gathered by itself."""
    mesh = layout.device_mesh(world.device, DATA_AXES)
    compile_blocks(gpt, config)
    shard_parameters(gpt, config, data_mesh(mesh, layout))
    return WholeModel(gpt, config, synced=synced_by(gpt))


def data_mesh(mesh: DeviceMesh, layout: Layout) -> DeviceMesh:
    """The part of the mesh that sees different data: with copies 2-D, for HSDP."""
    return mesh[DATA_AXES] if layout.dp > 1 else mesh["fsdp"]


def shard_parameters(gpt: GPT, config: TrainConfig, mesh: DeviceMesh) -> None:
    """Shards in place; gradients are summed in float32, whatever the computing is done in."""
    compute = torch.bfloat16 if config.dtype == "bfloat16" else None
    shard = partial(
        fully_shard,
        mesh=mesh,
        reshard_after_forward=not config.keep_gathered,
        mp_policy=MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32),
    )
    for block in gpt.blocks.values():
        shard(block)
    shard(gpt)


def synced_by(gpt: GPT) -> Callable[[bool], AbstractContextManager[None]]:
    """Averages gradients among the ranks with the last batch of a step alone."""

    def synced(last: bool) -> AbstractContextManager[None]:
        cast(FSDPModule, gpt).set_requires_gradient_sync(last)
        return nullcontext()

    return synced
