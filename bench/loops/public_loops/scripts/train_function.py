"""A function that a driver runs in workers, with configuration and reports, as Ray Train does."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep

START_METHOD = os.environ.get("START_METHOD", "spawn")
STEPS_PER_EPOCH, RANKS = 190, 3
Config = dict[str, Any]


class Session:
    """What a worker may ask and report while its function runs."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.reports: list[dict[str, float]] = []

    def report(self, metrics: dict[str, float]) -> None:
        """Keeps metrics and waits for the other workers' reports."""
        self.reports.append(metrics)
        dist.barrier()


class Fashion(TensorDataset):
    """Random pictures of clothes with their kinds."""

    def __init__(self, size: int) -> None:
        super().__init__(torch.rand(size, 784), torch.randint(10, (size,)))

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        sample: tuple[Tensor, ...] = super().__getitem__(index)
        return sample


class Classifier(nn.Module):
    """A perceptron with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.25), nn.Linear(256, 10)
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """[batch, 784] to [batch, 10]."""
        out: Tensor = self.layers(pictures)
        return out


def train_func(config: Config, session: Session) -> None:
    """The user's function: what a worker does."""
    torch.manual_seed(0)
    size = STEPS_PER_EPOCH * config["batch_size"] * session.world_size
    data = Fashion(size)
    loader = DataLoader(data, config["batch_size"], sampler=DistributedSampler(data))
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    monitor = lockstep.attach(model, optimizer)
    for epoch in range(config["epochs"]):
        total = 0.0
        for pictures, kinds in monitor.prepare(loader):
            loss = nn.functional.cross_entropy(model(pictures), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            monitor.step(loss=loss.item(), samples=len(pictures))
        session.report({"epoch": epoch, "loss": total / len(loader)})
    monitor.close()


def run_worker(
    index: int, function: Callable[[Config, Session], None], config: Config, port: int
) -> None:
    """Sets up the group of one worker, and runs the function in it."""
    world_size = config["num_workers"]
    identity = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": world_size,
                "LOCAL_WORLD_SIZE": world_size, "NODE_RANK": 0}  # fmt: skip
    os.environ |= {name: str(value) for name, value in identity.items()}
    address = f"tcp://localhost:{port}"
    dist.init_process_group("gloo", init_method=address, rank=index, world_size=world_size)
    function(config, Session(index, world_size))
    dist.destroy_process_group()


def main() -> None:
    """The driver."""
    config = {"lr": 1e-2, "epochs": 10, "batch_size": 32, "num_workers": RANKS}
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    arguments = train_func, config, port
    start_processes(run_worker, arguments, nprocs=RANKS, start_method=START_METHOD)


if __name__ == "__main__":
    main()
