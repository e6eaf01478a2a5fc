"""Trains a small model in several strategies, one after the other, with known delays of one rank.

Started by the tests, with torchrun's environment: ``strategies_loop.py ROOT NAME...``. Every other
step is delayed in one place, and the places take turns. The measured duration of each delay is
written next to the pages, for a busy machine sleeps longer than requested.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import lockstep
from lockstep.recorder import operation_listeners as operations_tap

LOCATIONS = ("data", "forward", "backward", "optimizer", "other", "collective")
# After each slow step a quick one: a rank that ends a step late is waited for in the next.
TURNS = tuple(turn for location in LOCATIONS for turn in (location, "none"))
WARM_UP = 8
ROUNDS = 6
DELAY_SECONDS = 0.1
WIDTH = 64
SLOW_RANK = 1
MICRO_BATCHES = 4


class Delays:
    """Sleeps on the slow rank, in the place whose turn it is, once a step."""

    def __init__(self) -> None:
        self.turn, self.slept, self.measured = "none", 0.0, list[tuple[str, float]]()

    def at(self, location: str) -> None:
        """Sleeps if it is the turn of this location and nothing has slept in this step."""
        if location == self.turn and dist.get_rank() == SLOW_RANK and not self.slept:
            begun = time.perf_counter()
            time.sleep(DELAY_SECONDS)
            self.slept = time.perf_counter() - begun

    def steps(self) -> Iterator[int]:
        """The numbers of the steps; the turn changes with each."""
        turns = ("none",) * WARM_UP + TURNS * ROUNDS
        for step, turn in enumerate(turns):
            self.turn, self.slept = turn, 0.0
            self.at("data")
            yield step
            self.measured.append((self.turn, self.slept))


delays = Delays()


class Slow(nn.Module):
    """Passes its input on, and may take its time in forward and backward."""

    def forward(self, x: Tensor) -> Tensor:
        delays.at("forward")
        if x.requires_grad:
            x = x.view_as(x)
            hook: Any = x.register_hook
            hook(lambda _: delays.at("backward"))
        return x


class Block(nn.Module):
    """A block that every strategy can divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.slow = nn.LayerNorm(WIDTH), Slow()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.slow(self.up(self.norm(x)).relu()))
        return out


class Exchange(nn.Module):
    """An expert on each rank: parts of the batch are sent to it and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        sizes = [len(x) // dist.get_world_size()] * dist.get_world_size()
        world = dist.distributed_c10d._get_default_group()
        dispatched = all_to_all_single_autograd(x, sizes, sizes, world)
        combined: Tensor = all_to_all_single_autograd(self.block(dispatched), sizes, sizes, world)
        return combined


def blocks(number: int = 3, of: type[nn.Module] = Block) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(of() for _ in range(number)))


def ddp() -> nn.Module:
    return DistributedDataParallel(blocks())


def fsdp2() -> Any:
    model = blocks()
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def hsdp() -> Any:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "fsdp"))
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tp() -> nn.Module:
    mesh, model = init_device_mesh("cpu", (dist.get_world_size(),)), blocks()
    style = {
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }
    for block in model:
        parallelize_module(block, mesh, style)
    return model


def ep() -> nn.Module:
    return blocks(2, Exchange)


def pipelined(kind: type[Any], num_stages: int = 2) -> tuple[nn.Module, Any]:
    """Stages on two ranks; with four ranks there are two pipelines, whose stages are sharded."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "fsdp"))
    layers = blocks(num_stages)
    numbers = range(mesh["pp"].get_local_rank(), num_stages, 2)
    parts = [layers[number] for number in numbers]
    for part in parts if mesh["fsdp"].size() > 1 else ():
        fully_shard(part, mesh=mesh["fsdp"])
    device, group = torch.device("cpu"), mesh["pp"].get_group()
    built = [
        PipelineStage(part, number, len(layers), device, group=group)
        for part, number in zip(parts, numbers, strict=True)
    ]
    stages = built if len(built) > 1 else built[0]
    schedule = kind(stages, MICRO_BATCHES, loss_fn=lambda out, _: out.square().mean())
    return nn.ModuleList(parts), schedule


UNPIPELINED: dict[str, Callable[[], nn.Module]] = {
    "ddp": ddp, "fsdp2": fsdp2, "hsdp": hsdp, "tp": tp, "ep": ep,
}  # fmt: skip
PIPELINES = {
    "gpipe": (ScheduleGPipe, 2),
    "1f1b": (Schedule1F1B, 2),
    "interleaved": (ScheduleInterleaved1F1B, 4),
    "1f1b-fsdp2": (Schedule1F1B, 2),
}


def train(name: str, root: Path) -> None:
    """Trains in one strategy, and writes the measured delays."""
    delays.measured = []
    schedule = None
    if name in UNPIPELINED:
        model = UNPIPELINED[name]()
    else:
        model, schedule = pipelined(*PIPELINES[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    environment = {**os.environ, "LOCKSTEP_JOB_ID": name}
    monitor = lockstep.attach(
        model, optimizer, schedule=schedule, root=root, environment=environment
    )
    assert monitor.enabled
    optimizer.register_step_pre_hook(lambda *_: delays.at("optimizer"))
    scalar = torch.zeros(())
    for _ in monitor.prepare(delays.steps()):
        batch = torch.randn(16, WIDTH)
        if schedule is None:
            model(batch).square().mean().backward()
        elif dist.get_rank() < dist.get_world_size() // 2:
            schedule.step(batch)
        else:
            schedule.step(target=batch)
        dist.all_reduce(scalar)
        optimizer.step()
        optimizer.zero_grad()
        delays.at("other")
        monitor.step()
    monitor.close()
    if dist.get_rank() == SLOW_RANK:
        (root / f"{name}.json").write_text(json.dumps(delays.measured))


def slow_collective(original: Callable[..., Any]) -> Callable[..., Any]:
    """A collective that takes its time after the rank has arrived."""

    def call(*args: Any, **kwargs: Any) -> Any:
        delays.at("collective")
        return original(*args, **kwargs)

    return call


def main(root: Path, names: list[str]) -> None:
    """Trains in every strategy named."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.all_reduce = slow_collective(dist.all_reduce)
    operations: list[Any] = []
    for name in names:
        operations.clear()
        operations_tap.tap = operations.append
        train(name, root)
        distinct = {
            (operation.op, operation.micro_batch, operation.chunk, operation.kind)
            for operation in operations
        }
        (root / f"{name}-{dist.get_rank()}.ops.json").write_text(
            json.dumps(sorted(distinct, key=str))
        )
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
