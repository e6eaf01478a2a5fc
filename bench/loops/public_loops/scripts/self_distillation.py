"""A student against a moving average of itself; a generator of pairs takes the loader's place."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import lockstep
from public_loops.scripts.parts import Batches, Net

STEPS, MOMENTUM = 900, 0.99


def views() -> Iterator[tuple[Tensor, Tensor]]:
    """Each batch twice, once with noise."""
    for batch in Batches(STEPS):
        yield batch, batch + 0.1 * torch.randn_like(batch)


def main() -> None:
    """Trains on random inputs."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    student, teacher = DistributedDataParallel(Net()), Net().requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    monitor = lockstep.attach(student, optimizer)
    for clean, noisy in monitor.prepare(views()):
        with torch.no_grad():
            target = teacher(clean)
        loss = functional.mse_loss(student(noisy), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for average, newest in zip(teacher.parameters(), student.parameters(), strict=True):
                average.lerp_(newest, 1 - MOMENTUM)
        monitor.step(loss=loss.detach())
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
