"""The held-out loss: each rank scores its part of fixed windows, and one all_reduce averages."""

import math

import numpy as np
import torch
import torch.distributed as dist

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import windows_at
from lockstep_trainer.data.corpus import Text
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.parallel.parallel_model import ParallelModel


def held_out_loss(
    model: ParallelModel, text: Text, config: TrainConfig, world: World, layout: Layout
) -> float:
    """Mean loss in nats per byte over windows spread evenly over the text; equal on all ranks.

    Every data rank scores the same number of windows, so that all run the same collectives.
    """
    last, batch = len(text) - 1 - config.sequence, config.samples_per_step
    # Rounded up: a rank without windows in a round would miss its collectives.
    rounds = math.ceil(config.eval_windows / (batch * layout.data_ranks))
    starts = np.linspace(0, last, rounds * batch * layout.data_ranks).astype(np.int64)
    own_starts = starts[layout.data_rank(world.rank) :: layout.data_ranks].reshape(rounds, batch)
    # float64: a float32 sum over many windows would lose digits of the loss.
    total = torch.zeros(2, dtype=torch.float64, device=world.device)
    for part in model.parts:
        part.eval()
    for batch_starts in own_starts:
        x, y = windows_at(text, batch_starts, config.sequence)
        total[0] += model.loss(x.to(world.device), y.to(world.device))
        total[1] += 1
    for part in model.parts:
        part.train()
    dist.all_reduce(total)
    return float(total[0] / total[1])  # sync point: waits for the GPU
