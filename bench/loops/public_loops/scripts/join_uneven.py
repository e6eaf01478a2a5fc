"""DDP under ``Join``: the ranks have unequally many batches, and who has none left shadows.

torchrun --nproc-per-node 3 join_uneven.py
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import lockstep

STEPS, MORE_PER_RANK, BATCH, WIDTH = 1200, 20, 32, 256


class Net(nn.Module):
    """A perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width] to the same."""
        out: Tensor = self.second(self.first(x).relu())
        return out


class Inputs:
    """More batches for higher ranks."""

    def __init__(self, rank: int) -> None:
        self.num_batches = STEPS + MORE_PER_RANK * rank

    def read(self) -> Tensor:
        """One batch [batch, width]."""
        return torch.rand(BATCH, WIDTH)

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self.num_batches):
            yield self.read()


def main() -> None:
    """Trains on all there is."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor = lockstep.attach(model, optimizer)
    with Join([model]):
        for batch in monitor.prepare(Inputs(dist.get_rank())):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss.detach(), samples=len(batch))
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
