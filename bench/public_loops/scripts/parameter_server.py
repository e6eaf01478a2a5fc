"""Asynchronous workers and a parameter server over torch's RPC: rank 0 serves, the others train.

torchrun --nproc-per-node 4 parameter_server.py
"""

import os
import threading
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed import rpc

import lockstep

STEPS, BATCH, WIDTH, SERVER = 150, 32, 192, "ps"


class Net(nn.Module):
    """A perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width] to the same."""
        out: Tensor = self.second(self.first(x).relu())
        return out


class Batches:
    """Random inputs."""

    def read(self) -> Tensor:
        """One batch [batch, width]."""
        return torch.rand(BATCH, WIDTH)

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(STEPS):
            yield self.read()


class ParameterServer:
    """Owns the parameters; applies each worker's gradients as they come."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.lock = Net(), threading.Lock()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)

    def get_parameters(self) -> list[Tensor]:
        """The newest parameters."""
        return [parameter.detach() for parameter in self.model.parameters()]

    def apply(self, gradients: list[Tensor]) -> None:
        """Steps by one worker's gradients."""
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()


_SERVERS: list[ParameterServer] = []


def push_and_pull(gradients: list[Tensor] | None) -> list[Tensor]:
    """Runs on the server: applies gradients and returns the newest parameters."""
    if gradients is not None:
        _SERVERS[0].apply(gradients)
    return _SERVERS[0].get_parameters()


def train_worker() -> None:
    """A worker's loop: pull, compute, push."""
    model = Net()
    monitor = lockstep.attach(model)
    gradients = None
    for batch in monitor.prepare(Batches()):
        with monitor.phase("sync"):
            newest = rpc.rpc_sync(SERVER, push_and_pull, (gradients,))
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), newest, strict=True):
                parameter.copy_(value)
        model.zero_grad()
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        monitor.step(loss=loss.item(), samples=len(batch))
    monitor.close()


def main() -> None:
    """Serves as rank 0, trains as any other."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        _SERVERS.append(ParameterServer())
    name = SERVER if rank == 0 else f"worker{rank}"
    rpc.init_rpc(name, rank=rank, world_size=world_size)
    if rank:
        train_worker()
    rpc.shutdown()


if __name__ == "__main__":
    main()
