"""One rank of a job that only saves checkpoints, for the soak to kill.

A module of its own: the fork server imports it, with torch, once for all jobs.
"""

import os
import sys
from multiprocessing.connection import Connection

import torch

from lockstep_trainer.checkpoints.checkpointer import Checkpointer
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import World, process_group
from lockstep_trainer.model.gpt import GPT
from lockstep_trainer.optimizer import adamw
from lockstep_trainer.parallel import layout_of, parallelize


def save_forever(
    config: TrainConfig, world: World, *, port: int, results: Connection, timeout_seconds: float
) -> None:
    """Resumes as one rank, then saves step after step; every parameter equals the step number.

    Args:
        config: of the run.
        world: this rank.
        port: of the rendezvous.
        results: gets each step with the failure of its save, or None.
        timeout_seconds: longest wait of a rank for the others.
    """
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno()
    )  # a killed peer makes torch complain
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with process_group(world, timeout_seconds=timeout_seconds, threads=1) as joined:
        gpt = GPT(**config.model_shape, recompute=False)
        model = parallelize(gpt, config, joined, layout_of(config, joined.size))
        optimizer = adamw(model.module.parameters())
        checkpoints = Checkpointer(config, {}, joined, lambda _: None)
        done = checkpoints.restore(model, optimizer)
        for step in range(done + 1, config.steps + 1):
            with torch.no_grad():
                for parameter in model.module.parameters():
                    parameter.fill_(step)
            checkpoints.save(step, model, optimizer)
            for save in checkpoints.finished():
                results.send((save.step, save.failure))
