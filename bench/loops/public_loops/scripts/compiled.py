"""A model under DDP and ``torch.compile``."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lockstep
from public_loops.scripts.parts import Batches, Net

STEPS = 1200


def main() -> None:
    """Trains on random inputs."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: Any = torch.compile(DistributedDataParallel(Net()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = lockstep.attach(model, optimizer)
    for batch in monitor.prepare(Batches(STEPS)):
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss=loss.detach(), samples=len(batch))
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
