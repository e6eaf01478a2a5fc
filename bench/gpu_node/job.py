"""A loop of DDP or FSDP2, ranks on one GPU or on processors: ``job.py FAULT STEPS [KIND]``.

From step 40 on the last rank has the fault: it is late (loader, host, backward), stops (stop-...),
starts a collective less, runs out of memory, fails, or launches a kernel that never ends.
"""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lockstep

FAULT, STEPS, KIND = sys.argv[1], int(sys.argv[2]), [*sys.argv[3:], "ddp"][0]
FAULT_STEP = 40
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ON_GPU = torch.cuda.is_available()
DEVICE, WIDTH = ("cuda", 4096) if ON_GPU else ("cpu", 128)
cuda: Any = torch.cuda
MODES = {"compile": None, "graphs": "reduce-overhead"}


def pause(fault: str, step: int) -> None:
    """The last rank loses 60 ms here, or stops for good."""
    if RANK == WORLD - 1 and step >= FAULT_STEP and FAULT in {fault, f"stop-{fault}"}:
        time.sleep(10_000 if FAULT.startswith("stop") else 0.06)


def batches() -> Iterator[Tensor]:
    """The batches of the loader."""
    for step in range(STEPS):
        pause("loader", step)
        yield torch.randn(64, WIDTH)


def fail(loss: Tensor, step: int) -> None:
    """What fails at step 40 in the last rank."""
    if RANK != WORLD - 1 or step != FAULT_STEP:
        return
    if FAULT == "memory":
        torch.empty(1 << 45, dtype=torch.uint8, device=DEVICE)
    elif FAULT == "assert":
        nn.functional.embedding(torch.tensor([99], device=DEVICE), torch.ones(2, 2, device=DEVICE))
    elif FAULT == "spin" and ON_GPU:
        cuda._sleep(1 << 44)  # noqa: SLF001  # torch's own tests use it
    elif FAULT == "few":
        dist.all_reduce(loss.detach())  # which nobody else starts


def main() -> None:
    """Trains."""
    if WORLD > 1:
        os.environ |= {"NCCL_HOSTID": f"gpu-node-{RANK}", "NCCL_SOCKET_IFNAME": "lo"}
        dist.init_process_group("nccl" if ON_GPU else "gloo")
    model: Any = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))).to(DEVICE)
    if KIND == "fsdp2":
        fully_shard(model)
    elif WORLD > 1:
        model = DistributedDataParallel(model)
    if KIND in MODES:
        model = torch.compile(model, mode=MODES[KIND])
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = lockstep.attach(model, optimizer, mesh={"fsdp": RANK} if KIND == "fsdp2" else None)
    for step, batch in enumerate(monitor.prepare(batches())):
        pause("forward", step)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(batch.to(DEVICE, non_blocking=True)).square().mean()
        pause("host", step)
        if FAULT == "backward" and ON_GPU and RANK == WORLD - 1 and step >= FAULT_STEP:
            loss.register_hook(lambda _gradient: cuda._sleep(60_000_000))  # noqa: SLF001  # the same
        loss.backward()
        fail(loss, step)
        optimizer.step()
        optimizer.zero_grad()
        pause("loop", step)
        monitor.step(loss=loss, samples=64)
    monitor.close()


if __name__ == "__main__":
    main()
