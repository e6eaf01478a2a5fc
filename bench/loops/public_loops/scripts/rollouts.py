"""A policy that plays before it learns: rollouts without gradients, gradients averaged by hand."""

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep
from public_loops.scripts.parts import Batches, Net

ITERATIONS, TURNS, EPOCHS = 50, 4, 2


def play(policy: Net, environment: Batches) -> list[tuple[Tensor, Tensor]]:
    """What the policy saw, and what it got for it."""
    seen = [environment.read() for _ in range(TURNS)]
    with torch.no_grad():
        return [(state, (policy(state) - state).square().mean(1)) for state in seen]


def main() -> None:
    """Trains on what it has played."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    policy, environment = Net(), Batches(ITERATIONS * TURNS)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    monitor = lockstep.attach(policy, optimizer)
    for _ in range(ITERATIONS):
        with monitor.phase("data"):
            experience = play(policy, environment)
        for state, cost in monitor.prepare(experience * EPOCHS):
            loss = (policy(state).square().mean(1) * cost).mean()
            optimizer.zero_grad()
            loss.backward()
            for gradient in (p.grad for p in policy.parameters() if p.grad is not None):
                dist.all_reduce(gradient)
                gradient.div_(dist.get_world_size())
            optimizer.step()
            monitor.step(loss=loss.detach(), samples=len(state))
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
