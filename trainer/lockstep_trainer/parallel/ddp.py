"""Data parallel: every rank holds the whole model, and gradients are averaged in the backward."""

import torch
from torch.nn.parallel import DistributedDataParallel

from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT
from lockstep_trainer.world import World


def data_parallel(model: GPT, world: World, layout: Layout) -> torch.nn.Module:
    """The model in DDP: rank 0's weights everywhere, gradients all-reduced in buckets."""
    del layout
    devices = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices)
