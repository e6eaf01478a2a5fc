"""A model that is trained step by step, bare or as a user of Lockstep would watch it.

It is one model whose hooks are removed and put back: of two equal models the one created later is
quicker by some twenty microseconds a step, because of where its memory is.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MethodType
from typing import Any

import torch

import lockstep

_SETTLE_STEPS = 20


class Trained:
    """A model with all that belongs to it; called, it trains one step."""

    def __init__(self, model: torch.nn.Module, batch: torch.Tensor) -> None:
        self._model, self._batch = model, batch
        self._optimizer = torch.optim.AdamW(model.parameters())
        self._monitor: lockstep.Monitor | None = None
        self._hooks: list[tuple[Any, dict[Any, Any]]] = []
        self._watched: tuple[lockstep.Monitor | None, Any] = (None, None)
        self._forwards: dict[bool, Any] = {}

    def watch(self, root: Path, environment: Mapping[str, str]) -> None:
        """Attaches Lockstep as a user would."""
        self._monitor = lockstep.attach(
            self._model, self._optimizer, root=root, environment={**os.environ, **environment}
        )
        assert self._monitor.enabled, "the bench needs a tmpfs at /dev/shm"

    def settle(self) -> None:
        """Trains until hooks no longer change, and notes them for ``hook``."""
        for _ in range(_SETTLE_STEPS):
            self()
        parameters: list[Any] = [*self._model.parameters()]
        autograd: Any = torch.autograd
        self._hooks = [
            (hooks, dict(hooks))
            for hooks in (
                self._model._forward_pre_hooks,  # noqa: SLF001  # torch has no other way
                self._model._forward_hooks,  # noqa: SLF001  # the same
                self._optimizer._optimizer_step_pre_hooks,  # noqa: SLF001  # the same
                self._optimizer._optimizer_step_post_hooks,  # noqa: SLF001  # the same
                *(each._post_accumulate_grad_hooks for each in parameters),  # noqa: SLF001  # the same
            )
            if hooks
        ]
        self._watched = self._monitor, autograd.backward
        first: Any = getattr(type(self._model), "_pre_forward", None)
        if first is not None:  # wrapped in its class; to change a class is slow for a while
            for on, function in ((True, first), (False, first.__wrapped__)):
                self._forwards[on] = MethodType(function, self._model)

    def use_batch(self, batch: torch.Tensor) -> None:
        """Trains on another batch from now on."""
        self._batch = batch

    def hook(self, *, on: bool) -> None:
        """Removes all hooks of ours from the model and from torch, or puts them back."""
        for hooks, ours in self._hooks:
            hooks.clear()
            if on:
                hooks.update(ours)
        monitor, listener = self._watched
        self._monitor = monitor if on else None
        autograd: Any = torch.autograd
        autograd.backward = listener if on else listener.original
        if self._forwards:
            vars(self._model)["_pre_forward"] = self._forwards[on]

    def __call__(self) -> None:
        """A step, as a user would write it with Lockstep or without."""
        self._optimizer.zero_grad()
        loss = self._model(self._batch).square().mean()
        loss.backward()
        self._optimizer.step()
        if self._monitor is not None:
            self._monitor.step(loss=loss, tokens=1024, samples=8)
