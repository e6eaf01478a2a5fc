"""An optimizer of its own that holds a part of the state a rank, with asynchronous collectives."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import lockstep
from public_loops.scripts.parts import Batches, Net

STEPS = 500


class ShardedAdam(torch.optim.AdamW):
    """Reduces all gradients, steps its own parameters and hands them round."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One step."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        handles = [dist.all_reduce(p.grad, async_op=True) for p in parameters]
        for parameter, handle in zip(parameters, handles, strict=True):
            handle.wait()
            parameter.grad /= dist.get_world_size()
        # A layer each: weights are nearly all of the work.
        owners = [number // 2 % dist.get_world_size() for number in range(len(parameters))]
        gradients = [p.grad for p in parameters]
        for parameter, owner in zip(parameters, owners, strict=True):
            if owner != dist.get_rank():
                parameter.grad = None
        loss = super().step(closure)
        shared = zip(parameters, owners, strict=True)
        for handle in [dist.broadcast(p.data, owner, async_op=True) for p, owner in shared]:
            handle.wait()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss


def main() -> None:
    """Trains on random inputs."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net()
    optimizer = ShardedAdam(model.parameters(), lr=1e-3)
    monitor = lockstep.attach(model, optimizer)
    for batch in monitor.prepare(Batches(STEPS)):
        loss = functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss.detach())
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
