"""The loops that every competitor runs: nothing at all, and a whole small training step."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Small:
    """Two layers of 64, a step of some 0.1 ms: what a tool adds is seen, with realistic caches."""

    model: torch.nn.Sequential
    optimizer: torch.optim.Optimizer
    batch: torch.Tensor

    @classmethod
    def fresh(cls) -> "Small":
        """A model with its optimizer and a batch, the same each time."""
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return cls(model, optimizer, torch.randn(8, 64))

    def step(self) -> None:
        """Forward, backward, optimizer."""
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
