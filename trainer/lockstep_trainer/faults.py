"""Faults on purpose: a rank that is really late in one phase, and a loss that is not a number."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data import Batch
from lockstep_trainer.model import GPT


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What one rank does wrong, and in which steps.

    Attributes:
        delay_seconds: how late the rank is in ``phase``; None when it is not slowed.
        phase: one of ``config.SLOW_PHASES``.
        until_step: first step that is fast again; None for slow to the end.
        nan_at: step whose loss is not a number; None for none.
    """

    delay_seconds: float | None
    phase: str = "backward"
    from_step: int = 1
    until_step: int | None = None
    nan_at: int | None = None

    def delay_at(self, step: int, phase: str) -> float:
        """Seconds to lose in a phase of a step; 0 when nothing is wrong there."""
        if self.delay_seconds is None or phase != self.phase or step < self.from_step:
            return 0.0
        return self.delay_seconds if self.until_step is None or step < self.until_step else 0.0


def fault_of(config: TrainConfig, rank: int) -> Fault:
    """The fault that the flags give to a rank."""
    return Fault(
        delay_seconds=config.slow_ms / 1000 if rank == config.slow_rank else None,
        phase=config.slow_phase,
        from_step=config.slow_from,
        until_step=config.slow_until,
        nan_at=config.nan_at,
    )


def inject(
    fault: Fault,
    parts: Sequence[GPT],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterable[Batch]:
    """Hangs the fault on a job and gives back the batches to train on.

    The delays in forward and backward happen at the middle block, so that in the backward half of
    the gradients are not there yet. Evaluations are left alone.

    Args:
        fault: what goes wrong.
        parts: the model, or the stages of it that this rank runs.
        optimizer: of the model.
        batches: the data.
        sleep: loses time.
    """
    injected = _Injected(fault, batches, sleep)
    blocks = list(parts[0].blocks.values())
    middle = blocks[len(blocks) // 2]
    middle.register_forward_pre_hook(
        lambda module, _: injected.lose("forward") if module.training else None
    )
    if fault.delay_seconds is not None and fault.phase == "backward":
        middle.register_full_backward_pre_hook(lambda *_: injected.lose("backward"))
    optimizer.register_step_pre_hook(lambda *_: injected.lose("optimizer"))
    parts[-1].register_forward_hook(injected.spoil)
    return injected


class _Injected:
    """Batches that know the step, for the hooks that need it."""

    def __init__(
        self, fault: Fault, batches: Iterable[Batch], sleep: Callable[[float], None]
    ) -> None:
        self._fault, self._batches, self._sleep = fault, batches, sleep
        self._step = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self._step = batch[0]
            self.lose("loader")
            yield batch

    def lose(self, phase: str) -> None:
        """Loses the time of the fault, if it is due in this phase."""
        if seconds := self._fault.delay_at(self._step, phase):
            self._sleep(seconds)

    def spoil(self, module: torch.nn.Module, _inputs: Any, loss: torch.Tensor) -> Any:
        """Makes the loss not a number, if that is due."""
        if module.training and self._step == self._fault.nan_at:
            return loss * float("nan")
        return None
