"""Accelerate without a Trainer: prepared objects, and micro-batches that it counts."""

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import lockstep
from public_loops.scripts.parts import Batches, Net

STEPS, MICRO_BATCHES = 400, 2


class Stream(Batches, IterableDataset[Tensor]):
    """Batches as a data set."""


def main() -> None:
    """Trains on random inputs."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    torch.manual_seed(0)
    loader = DataLoader(Stream(STEPS * MICRO_BATCHES), batch_size=None)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    monitor = lockstep.attach(model, optimizer)
    for batch in monitor.prepare(loader):
        with accelerator.accumulate(model):
            loss = functional.mse_loss(model(batch), batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                monitor.step(loss=loss)
    monitor.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
