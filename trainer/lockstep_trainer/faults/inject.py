"""Injects the faults of a rank: each in its steps, once a step, announced in one line."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import torch

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import Batch
from lockstep_trainer.faults.fault import Fault
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

    def target_of(batch: Batch) -> Target:
        return Target(
            parts=parts,
            optimizer=optimizer,
            checkpoint_dir=config.checkpoint_dir,
            batch=batch,
            sleep=sleep,
        )

    faults = faults_of(config, world)
    return _FaultyBatches(faults, batches, world.rank, target_of) if faults else batches


class _FaultyBatches:
    """Batches that enter the faults of a step before its batch, and leave them after the step."""

    def __init__(
        self,
        faults: Sequence[Fault],
        batches: Iterable[Batch],
        rank: int,
        target_of: Callable[[Batch], Target],
    ) -> None:
        self._faults, self._batches = faults, batches
        self._rank, self._target_of = rank, target_of
        self._done: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            target = self._target_of(batch)
            # The loop asks for the next batch when a step is over; the stack is left then.
            with ExitStack() as active:
                for fault in self._due(batch[0]):
                    in_step = KINDS[fault.kind].in_step
                    assert in_step is not None
                    fault.announce(rank=self._rank, step=batch[0])
                    active.enter_context(in_step(fault, target))
                yield target.batch

    def _due(self, step: int) -> Iterator[Fault]:
        for number, fault in enumerate(self._faults):
            if fault.is_due(step) and (number, step) not in self._done:
                self._done.add((number, step))
                yield fault
