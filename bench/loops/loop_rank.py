"""One rank of one loop of the matrix, with the library attached."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from cells import CELLS, Pace, batch_of, build, init, trainer

import lockstep


def train(name: str, origin: str, steps: int, root: str, rank: int) -> None:
    """Trains one rank with the library attached; the caller forks a process for it."""
    world = CELLS[name].ranks
    identity = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ.update(identity, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    init(root)
    pace, cell = Pace(origin), CELLS[name]
    model, optimizer = build(cell, pace)
    step = trainer(cell, model, optimizer)
    job = {"LOCKSTEP_JOB_ID": "loop", "LOCKSTEP_NODE": "n", **identity}
    monitor = lockstep.attach(model, optimizer, root=Path(root), environment=job)
    for number in range(steps):
        pace.step = number
        step(batch_of())
        monitor.step()
    monitor.close()
    dist.barrier()
    # DDP's reducer as the last owner of its group would join a thread that waits for the GIL.
    del model, optimizer, step
    dist.destroy_process_group()
