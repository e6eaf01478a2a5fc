"""An image classifier: loader workers, a validation each epoch, a schedule, checkpoints."""

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


def train_epoch(
    loader: DataLoader[Any], model: nn.Module, optimizer: torch.optim.Optimizer, monitor: Any
) -> None:
    """One epoch."""
    losses: list[float] = []
    model.train()
    for number, (images, target) in enumerate(monitor.prepare(loader)):
        loss = nn.functional.cross_entropy(model(images), target)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss.item(), samples=len(images))
        if number % PRINT_EVERY == 0 and dist.get_rank() == 0:
            print(f"[{number}/{len(loader)}] loss {sum(losses) / len(losses):.3f}")


def validate(loader: DataLoader[Any], model: nn.Module) -> float:
    """Accuracy over all ranks."""
    correct = torch.zeros(2)
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            correct += torch.tensor([(model(images).argmax(1) == target).sum(), len(images)])
    dist.all_reduce(correct)
    return float(correct[0] / correct[1])


def main() -> None:
    """Trains and validates."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(ResNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    data = Images(STEPS_PER_EPOCH * RANKS * BATCH)
    held_out = ValidationImages(VALIDATION_STEPS * RANKS * BATCH)
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
