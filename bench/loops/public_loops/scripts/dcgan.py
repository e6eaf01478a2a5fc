"""A generator against a discriminator: two models, two optimizers, three backwards in a step."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import lockstep

EPOCHS, STEPS_PER_EPOCH, RANKS, WORKERS, BATCH = 5, 200, 2, 2, 8
NOISE, FEATURES, SIZE, REAL, FAKE = 32, 8, 16, 1.0, 0.0


class Pictures(Dataset[Tensor]):
    """Random pictures."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(3, SIZE, SIZE) * 2 - 1


class Generator(nn.Module):
    """Noise to pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(NOISE, 2 * FEATURES, 4), nn.BatchNorm2d(2 * FEATURES), nn.ReLU(),
            nn.ConvTranspose2d(2 * FEATURES, FEATURES, 4, 2, 1), nn.BatchNorm2d(FEATURES),
            nn.ReLU(), nn.ConvTranspose2d(FEATURES, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, noise: Tensor) -> Tensor:
        """[batch, noise, 1, 1] to [batch, 3, size, size]."""
        out: Tensor = self.layers(noise)
        return out


class Discriminator(nn.Module):
    """Pictures to the logarithm of the odds that they are real."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, FEATURES, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(FEATURES, 2 * FEATURES, 4, 2, 1), nn.BatchNorm2d(2 * FEATURES),
            nn.LeakyReLU(0.2), nn.Conv2d(2 * FEATURES, 1, 4),
        )  # fmt: skip

    def forward(self, pictures: Tensor) -> Tensor:
        """[batch, 3, size, size] to [batch]."""
        out: Tensor = self.layers(pictures)
        return out.flatten()


def train_epoch(loader: DataLoader[Any], nets: Any, optimizers: Any, monitor: Any) -> None:
    """One epoch: the discriminator on real and on fake pictures, then the generator."""
    (generator, discriminator), (of_generator, of_discriminator) = nets, optimizers
    loss_of = nn.functional.binary_cross_entropy_with_logits
    for real in monitor.prepare(loader):
        discriminator.zero_grad()
        loss_of(discriminator(real), torch.full((len(real),), REAL)).backward()
        fake = generator(torch.randn(len(real), NOISE, 1, 1))
        loss_of(discriminator(fake.detach()), torch.full((len(real),), FAKE)).backward()
        of_discriminator.step()
        generator.zero_grad()
        loss = loss_of(discriminator(fake), torch.full((len(real),), REAL))
        loss.backward()
        of_generator.step()
        monitor.step(loss=loss.item(), samples=len(real))


def main() -> None:
    """Trains on random pictures."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    # Buffers that are broadcast at each forward would change beneath a backward that is to come.
    nets = [DistributedDataParallel(net, broadcast_buffers=False)
            for net in (Generator(), Discriminator())]  # fmt: skip
    optimizers = [torch.optim.Adam(n.parameters(), lr=2e-4, betas=(0.5, 0.999)) for n in nets]
    data = Pictures(STEPS_PER_EPOCH * RANKS * BATCH)
    sampler: DistributedSampler[Tensor] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, num_workers=WORKERS, sampler=sampler)
    monitor = lockstep.attach(nets, optimizers)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        train_epoch(loader, nets, optimizers, monitor)
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
