"""A trainer of one's own on Fabric: ``training_step``, and an optimizer that calls the closure.

torchrun --nproc-per-node 2 fabric_closure.py
"""

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import functional

import lockstep
from public_loops.scripts.parts import Batches, Net

STEPS = 900


class Task(Net):
    """A module with a step of its own."""

    def training_step(self, batch: Tensor) -> Tensor:
        """The loss of a batch."""
        return functional.mse_loss(self(batch), batch)


def main() -> None:
    """Trains on random inputs."""
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2)
    fabric.launch()
    torch.manual_seed(0)
    task = Task()
    model, optimizer = fabric.setup(task, torch.optim.AdamW(task.parameters(), lr=1e-3))
    model.mark_forward_method("training_step")
    monitor = lockstep.attach(model, optimizer)
    for batch in monitor.prepare(Batches(STEPS)):

        def closure(batch: Tensor = batch) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model.training_step(batch)
            fabric.backward(loss)
            return loss

        monitor.step(loss=optimizer.step(closure))
    monitor.close()


if __name__ == "__main__":
    main()
