"""Two stages that send activations and gradients to one another by isend and irecv."""

from typing import Any

import torch
import torch.distributed as dist

import lockstep
from public_loops.scripts.parts import BATCH, WIDTH, Batches, Net

STEPS = 1200


def main() -> None:
    """Trains on random inputs; the last stage has the loss."""
    dist.init_process_group("gloo")
    stage, other = dist.get_rank(), 1 - dist.get_rank()
    torch.manual_seed(stage)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor = lockstep.attach(model, optimizer, mesh={"pp": stage})
    for batch in monitor.prepare(Batches(STEPS)):
        received, loss = torch.empty(BATCH, WIDTH, requires_grad=stage == 1), None
        if stage == 0:
            outputs = model(batch)
            handles: list[Any] = [dist.isend(outputs.detach(), other), dist.irecv(received, other)]
            for handle in handles:
                handle.wait()
            outputs.backward(received)
        else:
            dist.recv(received.data, other)
            loss = (model(received) - batch).square().mean()
            loss.backward()
            assert received.grad is not None
            dist.send(received.grad, other)
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss=loss.detach() if loss is not None else None)
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
