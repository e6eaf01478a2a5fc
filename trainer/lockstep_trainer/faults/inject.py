"""Injects the faults of a rank: each in its steps, once a step, announced in one line."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import torch

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import Batch
from lockstep_trainer.faults.kind import Fault, Target
from lockstep_trainer.faults.kinds import KINDS
from lockstep_trainer.faults.parse import parse_all
from lockstep_trainer.layout.mesh import Layout
from lockstep_trainer.layout.world import World
from lockstep_trainer.model.gpt import GPT


def check_faults(config: TrainConfig, layout: Layout) -> None:
    """Refuses faults that the run cannot have.

    Raises:
        ValueError: one sentence that names the fault and the remedy.
    """
    for fault in parse_all(config, layout.world_size):
        if reason := KINDS[fault.kind].refuses(fault, config, layout):
            raise ValueError(f"fault {fault.kind} cannot be in this run: {reason}")


def faults_of(config: TrainConfig, world: World) -> tuple[Fault, ...]:
    """The faults that a rank meets in the steps of this start of the job."""
    # Every rank parses all faults, so that what is left to chance is the same on each.
    return tuple(
        fault
        for fault in parse_all(config, world.size)
        if fault.concerns(world.rank, world.attempt) and KINDS[fault.kind].in_step is not None
    )


def apply_startup_faults(config: TrainConfig, world: World) -> Mapping[str, str]:
    """The environment with the startup faults of this rank, which ``world`` was read without."""
    environment: Mapping[str, str] = os.environ
    for fault in parse_all(config, world.size):
        kind = KINDS[fault.kind]
        if kind.at_start is not None and fault.concerns(world.rank, world.attempt):
            fault.announce(rank=world.rank, step=0)
            environment = kind.at_start(fault, environment)
    return environment


def inject(
    config: TrainConfig,
    world: World,
    parts: Sequence[GPT],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterable[Batch]:
    """The batches to train on, with this rank's faults attached to their steps.

    A run without faults gets its batches back unchanged. Evaluations have no faults.
    """

    def with_faults() -> Iterator[Batch]:
        for batch in batches:
            target = Target(
                parts=parts,
                optimizer=optimizer,
                checkpoint_dir=config.checkpoint_dir,
                batch=batch,
                sleep=sleep,
            )
            # The loop asks for the next batch when a step is over; the stack is left then.
            with ExitStack() as active:
                for fault in faults:
                    if fault.is_due(batch[0]):
                        in_step = KINDS[fault.kind].in_step
                        assert in_step is not None
                        fault.announce(rank=world.rank, step=batch[0])
                        active.enter_context(in_step(fault, target))
                yield target.batch

    faults = faults_of(config, world)
    return with_faults() if faults else batches
