"""The same tutorial under spawn: the script starts its ranks itself, and no variable names them.

python ddp_spawn.py
"""

import os
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import lockstep

EPOCHS, STEPS_PER_EPOCH, SAVE_EVERY, RANKS, BATCH, WIDTH = 6, 200, 3, 2, 32, 896
START_METHOD = os.environ.get("START_METHOD", "spawn")


class ToyDataset(Dataset[tuple[Tensor, Tensor]]):
    """Random pairs."""

    def __init__(self, size: int) -> None:
        self.data = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.data[index]


class Net(nn.Module):
    """A perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 20] to [batch, 1]."""
        hidden = functional.relu(self.second(functional.relu(self.first(x))))
        out: Tensor = self.last(hidden)
        return out


class Trainer:
    """Trains epochs."""

    def __init__(self, model: nn.Module, loader: DataLoader[Any], rank: int) -> None:
        self.rank, self.loader = rank, loader
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.monitor = lockstep.attach(self.model, self.optimizer)

    def _run_epoch(self, epoch: int) -> None:
        sampler = self.loader.sampler
        assert isinstance(sampler, DistributedSampler)
        sampler.set_epoch(epoch)
        for source, targets in self.monitor.prepare(self.loader):
            self.optimizer.zero_grad()
            loss = functional.cross_entropy(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            self.monitor.step(loss=loss.detach(), samples=len(source))

    def train(self, max_epochs: int) -> None:
        """All epochs."""
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0 and epoch % SAVE_EVERY == 0:
                torch.save(self.model.module.state_dict(), Path("checkpoint.pt"))
        self.monitor.close()


def train_rank(rank: int, world_size: int, port: int) -> None:
    """One rank."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    data = ToyDataset(STEPS_PER_EPOCH * RANKS * BATCH)
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    Trainer(Net(), loader, rank).train(EPOCHS)
    dist.destroy_process_group()


def main() -> None:
    """Starts the ranks and waits for them."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    start_processes(train_rank, (RANKS, port), nprocs=RANKS, start_method=START_METHOD)


if __name__ == "__main__":
    main()
