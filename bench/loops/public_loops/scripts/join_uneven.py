"""DDP under ``Join``: the ranks have unequally many batches, and who has none left shadows."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import lockstep
from public_loops.scripts.parts import Batches, Net

STEPS, MORE_PER_RANK = 1200, 20


def main() -> None:
    """Trains on all there is."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor = lockstep.attach(model, optimizer)
    with Join([model]):
        for batch in monitor.prepare(Batches(STEPS + MORE_PER_RANK * dist.get_rank())):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss.detach(), samples=len(batch))
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
