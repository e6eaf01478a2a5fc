"""A model under DDP and ``torch.compile``.

torchrun --nproc-per-node 2 compiled.py
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lockstep

STEPS, BATCH, WIDTH = 1200, 32, 256


class Net(nn.Module):
    """A perceptron with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(3 * WIDTH)
        self.second = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width] to the same."""
        out: Tensor = self.second(nn.functional.gelu(self.norm(self.first(x))))
        return out


class Batches:
    """Random inputs."""

    def read(self) -> Tensor:
        """One batch [batch, width]."""
        return torch.rand(BATCH, WIDTH)

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(STEPS):
            yield self.read()


def main() -> None:
    """Trains on random inputs."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: Any = torch.compile(DistributedDataParallel(Net()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = lockstep.attach(model, optimizer)
    for batch in monitor.prepare(Batches()):
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss=loss.detach(), samples=len(batch))
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
