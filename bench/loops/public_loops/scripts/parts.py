"""What several scripts train: a perceptron, and random batches."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

BATCH, WIDTH = 32, 256


class Net(nn.Module):
    """A perceptron."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width] to the same."""
        out: Tensor = self.second(nn.functional.gelu(self.first(x)))
        return out


class Batches:
    """Random inputs, so many of them."""

    def __init__(self, num_batches: int, width: int = WIDTH) -> None:
        self.num_batches, self.width = num_batches, width

    def read(self) -> Tensor:
        """One batch [batch, width]."""
        return torch.rand(BATCH, self.width)

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self.num_batches):
            yield self.read()


class Samples(Dataset[Tensor]):
    """Random vectors."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(WIDTH)


class HeldOut(Samples):
    """The same for a validation."""
