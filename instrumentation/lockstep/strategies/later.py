"""Instruments what was attached before the process group: at the first forward it is complete."""

from collections.abc import Callable
from typing import Any

import torch

from lockstep.patches.groups import call_when_initialised
from lockstep.patches.install import install
from lockstep.patches.layers import ddp_around


def call_at_group(callback: Callable[[], object]) -> None:
    """Calls it once, when the default process group has been initialised."""
    install("groups")
    call_when_initialised(callback)


def watch_at_first_forward(model: Any, optimizer: Any, watch: Callable[[Any, Any], object]) -> None:
    """Hands models to ``watch`` when the first is called, or the DDP that calls it."""
    modules = [model] if isinstance(model, torch.nn.Module) else list(model or ())
    if not modules:
        watch(model, optimizer)
        return
    handles: list[Any] = []

    def first_forward(*_: Any) -> None:
        while handles:
            handles.pop().remove()
        watch([ddp_around(module) or module for module in modules], optimizer)

    handles += [module.register_forward_pre_hook(first_forward) for module in modules]
