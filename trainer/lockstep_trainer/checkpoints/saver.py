"""One rank of a job that does nothing but save, for the soak to kill."""

import os
import sys
from multiprocessing.connection import Connection

import torch

from lockstep_trainer.checkpoints.checkpoint import Checkpoints
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.model import GPT
from lockstep_trainer.optimizer import adamw
from lockstep_trainer.parallel import layout_of, share
from lockstep_trainer.world import World, joined


def save_for_ever(
    config: TrainConfig, world: World, *, port: int, told: Connection, limit_seconds: float
) -> None:
    """Resumes as one rank, then saves step after step; all numbers in the state are the step's.

    Args:
        config: of the run.
        world: this rank.
        port: where the ranks meet.
        told: takes each step with why it could not be saved, or None.
        limit_seconds: that a rank waits for the others.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # a killed peer is no news
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with joined(world, timeout_seconds=limit_seconds, threads=1) as together:
        gpt = GPT(**config.model_shape, recompute=False)
        model = share(gpt, config, together, layout_of(config, together.size))
        optimizer = adamw(model.module.parameters())
        checkpoints = Checkpoints(config, {}, together, lambda _: None)
        done = checkpoints.restore(model, optimizer)
        for step in range(done + 1, config.steps + 1):
            with torch.no_grad():
                for parameter in model.module.parameters():
                    parameter.fill_(step)
            checkpoints.save(step, model, optimizer)
            for save in checkpoints.ended():
                told.send((save.step, save.failure))
