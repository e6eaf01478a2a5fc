"""A model that is trained step by step, bare or as a user of Lockstep would watch it.

It is one model that gives its hooks away and takes them back: of two that are alike, the one that
was made later is quicker by some twenty microseconds a step, for where its memory lies.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MethodType
from typing import Any

import torch

import lockstep

_SETTLES = 20  # steps


class Trained:
    """A model with all that belongs to it; called, it trains one step."""

    def __init__(self, model: torch.nn.Module, batch: torch.Tensor) -> None:
        self._model, self._batch = model, batch
        self._optimizer = torch.optim.AdamW(model.parameters())
        self._monitor: lockstep.NoopMonitor | None = None
        self._hung: list[tuple[Any, dict[Any, Any]]] = []
        self._kept: tuple[lockstep.NoopMonitor | None, Any] = (None, None)
        self._firsts: dict[bool, Any] = {}

    def watch(self, root: Path, told: Mapping[str, str]) -> None:
        """Attaches Lockstep as a user would."""
        self._monitor = lockstep.attach(
            self._model, self._optimizer, root=root, environment={**os.environ, **told}
        )
        assert self._monitor.enabled, "the bench needs a tmpfs at /dev/shm"

    def settle(self) -> None:
        """Trains until no hook comes or goes any more, and notes what hangs, for ``hang``."""
        for _ in range(_SETTLES):
            self()
        parameters: list[Any] = [*self._model.parameters()]
        within: Any = torch.autograd
        self._hung = [
            (hooks, dict(hooks))
            for hooks in (
                self._model._forward_pre_hooks,  # noqa: SLF001  # torch has no other way
                self._model._forward_hooks,  # noqa: SLF001  # the same
                self._optimizer._optimizer_step_pre_hooks,  # noqa: SLF001  # the same
                self._optimizer._optimizer_step_post_hooks,  # noqa: SLF001  # the same
                *(one._post_accumulate_grad_hooks for one in parameters),  # noqa: SLF001  # the same
            )
            if hooks
        ]
        self._kept = self._monitor, within.backward
        first: Any = getattr(type(self._model), "_pre_forward", None)
        if first is not None:  # stood around in its class; one that changes is slow for a while
            for on, one in ((True, first), (False, first.__wrapped__)):
                self._firsts[on] = MethodType(one, self._model)

    def hang(self, *, on: bool) -> None:
        """Takes all that is ours off the model and out of torch, or puts it back."""
        for hooks, kept in self._hung:
            hooks.clear()
            if on:
                hooks.update(kept)
        monitor, listener = self._kept
        self._monitor = monitor if on else None
        within: Any = torch.autograd
        within.backward = listener if on else listener.original
        if self._firsts:
            vars(self._model)["_pre_forward"] = self._firsts[on]

    def __call__(self) -> None:
        """A step, as a user would write it with Lockstep or without."""
        self._optimizer.zero_grad()
        loss = self._model(self._batch).square().mean()
        loss.backward()
        self._optimizer.step()
        if self._monitor is not None:
            self._monitor.step(loss=loss, tokens=1024, samples=8)
