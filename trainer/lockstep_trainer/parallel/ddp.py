"""Data parallel: every rank holds the whole model, and gradients are averaged in the backward."""

from contextlib import nullcontext

from torch.nn.parallel import DistributedDataParallel

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT
from lockstep_trainer.parallel.shared import SharedModel, WholeModel, compile_blocks
from lockstep_trainer.world import World


def data_parallel(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> SharedModel:
    """The model in DDP: rank 0's weights everywhere, gradients all-reduced in buckets."""
    del layout
    compile_blocks(gpt, config)
    devices = [world.device] if world.device.type == "cuda" else None
    model = DistributedDataParallel(gpt, device_ids=devices)
    return WholeModel(
        gpt, config, call=model, synced=lambda last: nullcontext() if last else model.no_sync()
    )
