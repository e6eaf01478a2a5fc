"""The loops of the matrix: each is a model over gloo and how one step of it is trained."""

import itertools
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

LAYER_SECONDS, NUM_LAYERS, WIDTH = 0.02, 4, 32
"""Of a layer's forward. It sleeps: the host's own work is small next to it, whatever else runs."""
SLOW_RANK, SLOW_FACTOR, SLOW_FROM_STEP = 1, 1.4, 30


class Pace:
    """How long a layer takes; the slow rank's longer from a step on, in forward or backward."""

    def __init__(self, origin: str) -> None:
        self.origin, self.step = origin, 0

    def wait(self, phase: str, seconds: float) -> None:
        """Stands in for the work of a device."""
        is_slow = dist.get_rank() == SLOW_RANK and self.step >= SLOW_FROM_STEP
        factor = SLOW_FACTOR if is_slow and phase == self.origin else 1.0
        time.sleep(seconds * factor)


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pace: Pace) -> Tensor:
        ctx.pace = pace
        pace.wait("forward", LAYER_SECONDS)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.pace.wait("backward", 2 * LAYER_SECONDS)
        return gradients[0], None


class Layer(nn.Module):
    """A small linear layer with the time of a large one."""

    def __init__(self, pace: Pace, recomputed: bool | None) -> None:
        super().__init__()
        self.linear, self._pace, self._recomputed = nn.Linear(WIDTH, WIDTH), pace, recomputed

    def _compute(self, x: Tensor) -> Tensor:
        work: Any = _work
        out: Tensor = work(torch.relu(self.linear(x)), self._pace)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """``recomputed`` True by reentrant checkpointing, False by the other kind, None not."""
        if self._recomputed is None:
            return self._compute(x)
        out: Tensor = checkpoint(self._compute, x, use_reentrant=self._recomputed)
        return out


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch gives it no types
def _work(x: Tensor, pace: Pace) -> Tensor:
    apply: Any = _Work.apply
    out: Tensor = apply(x, pace)
    return out


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One loop.

    Attributes:
        sharded: FSDP2; else DDP.
        options: of DistributedDataParallel or ``fully_shard``.
        recomputed: activation checkpointing: True reentrant, False not, None without.
        ranks: how many take part.
        first_alone: the first step has one micro-batch. With static_graph torch 2.13 fails in a
            first backward without synchronisation (pytorch/pytorch#143580).
    """

    sharded: bool = False
    options: dict[str, Any] | None = None
    recomputed: bool | None = None
    ranks: int = 3
    hook: bool = False
    zero: bool = False
    accumulation: int = 1
    compiled: bool = False
    autocast: bool = False
    scaled: bool = False
    hybrid: bool = False
    offloaded: bool = False
    mixed: bool = False
    first_alone: bool = False


CELLS: dict[str, Cell] = {
    "ddp": Cell(),
    "ddp static_graph": Cell(options={"static_graph": True}),
    "ddp find_unused_parameters": Cell(options={"find_unused_parameters": True}),
    "ddp gradient_as_bucket_view": Cell(options={"gradient_as_bucket_view": True}),
    "ddp communication hook": Cell(hook=True),
    "ddp ZeroRedundancyOptimizer": Cell(zero=True),
    "ddp no_sync accumulation": Cell(accumulation=3),
    "ddp checkpointing": Cell(recomputed=False),
    "ddp reentrant checkpointing": Cell(recomputed=True),
    "ddp static_graph, reentrant checkpointing": Cell(
        options={"static_graph": True}, recomputed=True
    ),
    "ddp static_graph, checkpointing": Cell(options={"static_graph": True}, recomputed=False),
    "ddp static_graph, no_sync accumulation": Cell(
        options={"static_graph": True}, accumulation=2, first_alone=True
    ),
    "ddp torch.compile inductor": Cell(compiled=True),
    "ddp autocast": Cell(autocast=True),
    "ddp GradScaler": Cell(scaled=True),
    "fsdp2 reshard": Cell(sharded=True, options={"reshard_after_forward": True}),
    "fsdp2 no reshard": Cell(sharded=True, options={"reshard_after_forward": False}),
    "fsdp2 hybrid": Cell(sharded=True, hybrid=True, ranks=4),
    "fsdp2 offload": Cell(sharded=True, offloaded=True),
    "fsdp2 mixed precision": Cell(sharded=True, mixed=True),
    "fsdp2 checkpointing": Cell(sharded=True, recomputed=False),
    "fsdp2 accumulation": Cell(sharded=True, accumulation=2),
    "fsdp2 torch.compile inductor": Cell(sharded=True, compiled=True),
}


def build(cell: Cell, pace: Pace) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The wrapped model and its optimizer."""
    layers = nn.Sequential(*(Layer(pace, cell.recomputed) for _ in range(NUM_LAYERS)))
    model = _sharded(layers, cell) if cell.sharded else _replicated(layers, cell)
    if cell.compiled:
        model = torch.compile(model)  # type: ignore[assignment]  # typeshed says a callable
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if cell.zero:
        zero: Any = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.01)
        return model, zero
    return model, torch.optim.SGD(parameters, lr=0.01)


def _replicated(layers: nn.Module, cell: Cell) -> nn.Module:
    model = DistributedDataParallel(layers, **(cell.options or {}))
    if cell.hook:
        model.register_comm_hook(None, allreduce_hook)
    return model


def _sharded(layers: nn.Module, cell: Cell) -> nn.Module:
    options: dict[str, Any] = dict(cell.options or {})
    if cell.hybrid:
        options["mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    else:
        options["mesh"] = init_device_mesh("cpu", (dist.get_world_size(),))
    if cell.offloaded:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    if cell.mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in layers.children():
        fully_shard(layer, **options)
    fully_shard(layers, **options)
    return layers


def trainer(
    cell: Cell, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[Tensor], None]:
    """Function that trains one step on a batch."""
    scaler = torch.amp.GradScaler("cpu") if cell.scaled else None
    no_sync: Any = getattr(model, "no_sync", nullcontext)
    set_sync: Any = getattr(model, "set_requires_gradient_sync", lambda _: None)

    def micro_step(batch: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=cell.autocast):
            loss = model(batch).float().square().mean()
        (scaler.scale(loss) if scaler else loss).backward()

    usual = itertools.repeat(cell.accumulation)
    num_micro_steps = itertools.chain([1], usual) if cell.first_alone else usual

    def step(batch: Tensor) -> None:
        count = next(num_micro_steps)
        for number in range(count):
            is_last = number == count - 1
            set_sync(is_last)
            with nullcontext() if is_last else no_sync():
                micro_step(batch)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()

    return step


def batch_of() -> Tensor:
    """A batch, the same size on all ranks; its gradient reaches recomputed layers."""
    return torch.randn(4, WIDTH, requires_grad=True)


def init(root: str) -> None:
    """Joins the group of this run."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=world
    )
