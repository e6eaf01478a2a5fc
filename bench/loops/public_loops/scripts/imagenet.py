"""An image classifier: loader workers, meters, a validation each epoch, a schedule, checkpoints.

torchrun --nproc-per-node 2 imagenet.py
"""

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import lockstep

EPOCHS, STEPS_PER_EPOCH, VALIDATION_STEPS, RANKS, WORKERS, BATCH = 6, 200, 8, 2, 2, 8
PRINT_EVERY, CLASSES, SIZE = 20, 10, 40


class Images(Dataset[tuple[Tensor, int]]):
    """Random pictures with a random class."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = torch.rand(3, SIZE, SIZE)
        if index % 2:  # a flip, as augmentation
            picture = picture.flip(2)
        return (picture - 0.5) / 0.25, index % CLASSES


class ValidationImages(Images):
    """Pictures that nobody augments."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(3, SIZE, SIZE), index % CLASSES


class ResNet(nn.Module):
    """Convolutions with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, size, size] to [batch, classes]."""
        x = self.stem(x).relu()
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            x = x + norm(convolution(x)).relu()
        out: Tensor = self.head(x.mean(dim=(2, 3)))
        return out


class AverageMeter:
    """The newest value and the mean of all."""

    def __init__(self, name: str) -> None:
        self.name, self.value, self.sum, self.count = name, 0.0, 0.0, 0

    def update(self, value: float, n: int = 1) -> None:
        """Takes a value that counts n times."""
        self.value, self.sum, self.count = value, self.sum + n * value, self.count + n

    def all_reduce(self) -> None:
        """Makes the mean that of all ranks."""
        total = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(total)
        self.sum, self.count = float(total[0]), int(total[1])

    def __str__(self) -> str:
        return f"{self.name} {self.value:.3f} ({self.sum / max(self.count, 1):.3f})"


def train_epoch(
    loader: DataLoader[Any], model: nn.Module, optimizer: torch.optim.Optimizer, monitor: Any
) -> None:
    """One epoch, with meters."""
    meters = batch_time, data_time, losses = (
        AverageMeter("time"),
        AverageMeter("data"),
        AverageMeter("loss"),
    )
    model.train()
    end = time.time()
    for number, (images, target) in enumerate(monitor.prepare(loader)):
        data_time.update(time.time() - end)
        loss = nn.functional.cross_entropy(model(images), target)
        losses.update(loss.item(), len(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss.item(), samples=len(images))
        batch_time.update(time.time() - end)
        end = time.time()
        if number % PRINT_EVERY == 0 and dist.get_rank() == 0:
            print(f"[{number}/{len(loader)}]", *meters)


def validate(loader: DataLoader[Any], model: nn.Module) -> float:
    """Accuracy over all ranks."""
    correct = AverageMeter("correct")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            hits = (model(images).argmax(1) == target).float().mean()
            correct.update(float(hits), len(images))
    correct.all_reduce()
    return correct.sum / correct.count


def main() -> None:
    """Trains and validates."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(ResNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    data, held_out = (
        Images(STEPS_PER_EPOCH * RANKS * BATCH),
        ValidationImages(VALIDATION_STEPS * RANKS * BATCH),
    )
    loader, held_out_loader = (
        DataLoader(each, batch_size=BATCH, num_workers=WORKERS, sampler=DistributedSampler(each))
        for each in (data, held_out)
    )
    monitor = lockstep.attach(model, optimizer)
    for epoch in range(EPOCHS):
        train_epoch(loader, model, optimizer, monitor)
        with monitor.phase("eval"):
            accuracy = validate(held_out_loader, model)
        scheduler.step()
        if dist.get_rank() == 0:
            state = {"epoch": epoch, "accuracy": accuracy, "model": model.module.state_dict()}
            torch.save(state, Path("checkpoint.pth.tar"))
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
