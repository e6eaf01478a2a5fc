"""Injects the faults of a rank: each in its steps, once a step, announced in one line."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import torch

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import Batch
from lockstep_trainer.faults.kind import Target
from lockstep_trainer.faults.kinds import KINDS
from lockstep_trainer.faults.plan import faults_of
from lockstep_trainer.layout.world import World
from lockstep_trainer.model.gpt import GPT


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
