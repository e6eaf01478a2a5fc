"""The held-out loss: every rank scores its share of fixed windows, one all_reduce averages."""

import numpy as np
import torch
import torch.distributed as dist

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data import Text, windows_at
from lockstep_trainer.model import GPT
from lockstep_trainer.world import World

_NUM_WINDOWS = 256


@torch.no_grad()
def held_out_loss(model: GPT, text: Text, config: TrainConfig, world: World) -> float:
    """Mean loss in nats per byte over windows spread evenly over the text; equal on all ranks."""
    last = len(text) - 1 - config.sequence
    starts = np.linspace(0, last, max(_NUM_WINDOWS, world.size)).astype(np.int64)
    mine = starts[world.rank :: world.size]
    total = torch.zeros(2, dtype=torch.float64, device=world.device)
    model.eval()
    for first in range(0, len(mine), config.batch):
        x, y = windows_at(text, mine[first : first + config.batch], config.sequence)
        total[0] += model(x.to(world.device), y.to(world.device)) * len(x)
        total[1] += len(x)
    model.train()
    dist.all_reduce(total)
    return float(total[0] / total[1])
