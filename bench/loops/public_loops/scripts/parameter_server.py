"""Asynchronous workers and a parameter server over torch's RPC: rank 0 serves, the others train."""

import os
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import rpc

import lockstep
from public_loops.scripts.parts import Batches, Net

STEPS, WIDTH, SERVER = 2400, 192, "ps"


class ParameterServer:
    """Owns the parameters; applies each worker's gradients as they come."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.lock = Net(WIDTH), threading.Lock()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.num_updates, self.seen_by_worker = 0, dict[int, int]()

    def exchange(self, worker: int, gradients: list[Tensor] | None) -> tuple[list[Tensor], int]:
        """Steps by one worker's gradients; newest parameters, and updates it did not know of."""
        with self.lock:
            staleness = self.num_updates - self.seen_by_worker.get(worker, self.num_updates)
            if gradients is not None:
                for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                self.optimizer.step()
                self.num_updates += 1
            self.seen_by_worker[worker] = self.num_updates
            return [parameter.detach() for parameter in self.model.parameters()], staleness


_SERVERS: list[ParameterServer] = []


def push_and_pull(worker: int, gradients: list[Tensor] | None) -> tuple[list[Tensor], int]:
    """Runs on the server."""
    return _SERVERS[0].exchange(worker, gradients)


def train_worker(rank: int) -> None:
    """A worker's loop: push and pull, compute."""
    model = Net(WIDTH)
    monitor: Any = lockstep.attach(model)
    gradients = None
    for batch in monitor.prepare(Batches(STEPS, WIDTH)):
        with monitor.phase("sync"):
            newest, staleness = rpc.rpc_sync(SERVER, push_and_pull, (rank, gradients))
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), newest, strict=True):
                parameter.copy_(value)
        monitor.synced(staleness_steps=staleness)
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
        train_worker(rank)
    rpc.shutdown()


if __name__ == "__main__":
    main()
