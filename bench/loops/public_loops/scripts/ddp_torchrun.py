"""A tutorial's Trainer under torchrun: a small model, quick steps, snapshots by rank 0."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import lockstep

EPOCHS, STEPS_PER_EPOCH, SAVE_EVERY, RANKS, BATCH, WIDTH = 6, 200, 3, 2, 32, 896


class ToyDataset(Dataset[tuple[Tensor, Tensor]]):
    """Random pairs."""

    def __init__(self, size: int) -> None:
        self.data = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.data[index]


class Net(nn.Sequential):
    """A perceptron."""

    def __init__(self) -> None:
        layers = nn.Linear(20, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        super().__init__(*layers, nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 20] to [batch, 1]."""
        out: Tensor = super().forward(x)
        return out


class Trainer:
    """Trains epochs, and goes on from a snapshot where there is one."""

    def __init__(self, model: nn.Module, loader: DataLoader[Any], snapshot: Path) -> None:
        self.rank = int(os.environ["RANK"])
        self.loader, self.snapshot, self.epochs_run = loader, snapshot, 0
        if snapshot.exists():
            state = torch.load(snapshot)
            model.load_state_dict(state["MODEL_STATE"])
            self.epochs_run = state["EPOCHS_RUN"]
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.monitor = lockstep.attach(self.model, self.optimizer)

    def _run_batch(self, source: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _run_epoch(self, epoch: int) -> None:
        batch_size = len(next(iter(self.loader))[0])
        if self.rank == 0:
            print(f"epoch {epoch} | batch size {batch_size} | steps {len(self.loader)}")
        sampler = self.loader.sampler
        assert isinstance(sampler, DistributedSampler)
        sampler.set_epoch(epoch)
        for source, targets in self.monitor.prepare(self.loader):
            loss = self._run_batch(source, targets)
            self.monitor.step(loss=loss, samples=len(source))

    def train(self, max_epochs: int) -> None:
        """The epochs that are left."""
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0 and epoch % SAVE_EVERY == 0:
                state = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
                torch.save(state, self.snapshot)
        self.monitor.close()


def main() -> None:
    """Trains on random numbers."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = ToyDataset(STEPS_PER_EPOCH * RANKS * BATCH)
    loader = DataLoader(data, batch_size=BATCH, shuffle=False, sampler=DistributedSampler(data))
    Trainer(Net(), loader, Path("snapshot.pt")).train(EPOCHS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
