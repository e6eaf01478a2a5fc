"""Wrong numbers: a NaN in the gradient or in the loss, and a learning rate that diverges."""

from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_trainer.faults.kind import Fault, Kind, Step, Target, Value


@contextmanager
def _nan_gradient(_fault: Fault, target: Target) -> Step:
    """Sets one number of the gradient into the middle block to NaN, as a faulty chip may do."""

    def set_nan(_module: nn.Module, gradients: Any) -> Any:
        changed = gradients[0].clone()
        changed.view(-1)[0] = float("nan")
        return (changed, *gradients[1:])

    with target.middle_block.register_full_backward_pre_hook(set_nan):
        yield


@contextmanager
def _nan_loss(_fault: Fault, target: Target) -> Step:
    def make_nan(module: nn.Module, _inputs: Any, loss: Tensor) -> Tensor | None:
        # A product keeps the graph, so that the backward runs as usual.
        return loss * float("nan") if module.training else None

    with target.parts[-1].register_forward_hook(make_nan):
        yield


@contextmanager
def _diverge(fault: Fault, target: Target) -> Step:
    def raise_learning_rate(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= fault.values["factor"]

    with target.optimizer.register_step_pre_hook(raise_learning_rate):
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
