"""Numbers that go wrong: a gradient or a loss that is none, and a learning rate that diverges."""

from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Step, Target, Value


@contextmanager
def _nan_gradient(_fault: Fault, target: Target) -> Step:
    """One number of the gradient that flows into the middle block is none: so a bad chip does."""

    def spoil(_module: nn.Module, gradients: Any) -> Any:
        spoiled = gradients[0].clone()
        spoiled.view(-1)[0] = float("nan")
        return (spoiled, *gradients[1:])

    with target.middle_block.register_full_backward_pre_hook(spoil):
        yield


@contextmanager
def _nan_loss(_fault: Fault, target: Target) -> Step:
    def spoil(module: nn.Module, _inputs: Any, loss: Tensor) -> Tensor | None:
        return loss * float("nan") if module.training else None

    with target.parts[-1].register_forward_hook(spoil):
        yield


@contextmanager
def _diverge(fault: Fault, target: Target) -> Step:
    def raise_it(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= fault.values["factor"]

    with target.optimizer.register_step_pre_hook(raise_it):
        yield


KINDS = (
    Kind(name="nan-gradient", in_step=_nan_gradient),
    Kind(name="nan-loss", in_step=_nan_loss),
    Kind(
        name="diverge",
        in_step=_diverge,
        values=(Value(name="factor", low=0, high=1e9, default=100),),
    ),
)
