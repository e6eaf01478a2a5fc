"""A model that is trained step by step, bare or as a user of Lockstep would watch it."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

import lockstep


class Trained:
    """A model with all that belongs to it; called, it trains one step."""

    def __init__(self, model: torch.nn.Module, batch: torch.Tensor) -> None:
        self._model, self._batch = model, batch
        self._optimizer = torch.optim.AdamW(model.parameters())
        self._monitor = lockstep.disabled()

    def watch(self, root: Path, told: Mapping[str, str]) -> None:
        """Attaches Lockstep as a user would."""
        self._monitor = lockstep.attach(
            self._model, self._optimizer, root=root, environment={**os.environ, **told}
        )
        assert self._monitor.enabled, "the bench needs a tmpfs at /dev/shm"

    def __call__(self) -> None:
        """A step; the loss is told as it is, which waits for no device."""
        self._optimizer.zero_grad()
        loss = self._model(self._batch).square().mean()
        loss.backward()
        self._optimizer.step()
        self._monitor.step(loss=loss.detach(), tokens=1024, samples=8)
