"""Fabric with a training step of the model's own, which the optimizer calls as a closure."""

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import lockstep
from public_loops.scripts.parts import Batches, Net

STEPS = 700


class Stream(Batches, IterableDataset[Tensor]):
    """Batches as a data set."""


class Reconstruction(Net):
    """A perceptron that knows its loss."""

    def training_step(self, batch: Tensor) -> Tensor:
        """The loss of a batch [batch, width]."""
        return functional.mse_loss(self(batch), batch)


def main() -> None:
    """Trains on random inputs."""
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0)
    net = Reconstruction()
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    monitor = lockstep.attach(net, optimizer)
    model.mark_forward_method("training_step")
    loader = fabric.setup_dataloaders(DataLoader(Stream(STEPS), batch_size=None))
    for batch in monitor.prepare(loader):

        def closure(batch: Tensor = batch) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model.training_step(batch)
            fabric.backward(loss)
            return loss

        loss = optimizer.step(closure)
        monitor.step(loss=loss)
    monitor.close()


if __name__ == "__main__":
    main()
