"""Instruments what ``attach`` is given: models, optimizers and the schedule of a pipeline."""

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lockstep.monitor.fingerprints import watch_replicas
from lockstep.monitor.live import LiveMonitor
from lockstep.patches import waits
from lockstep.patches.install import install
from lockstep.strategies.hooks import StepHooks, watch_optimizer

T = TypeVar("T")


def watch(
    monitor: LiveMonitor,
    model: torch.nn.Module | Iterable[torch.nn.Module] | None,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
    schedule: Any = None,
) -> None:
    """Reports to a monitor what models, optimizers and a pipeline's schedule do from now on."""
    waits.report_to(monitor, monitor.recorder)
    install("graphs")
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        install("collectives")
        install("functional")
        if "torch.distributed.fsdp" in sys.modules:
            install("fsdp")
    if schedule is not None:
        # It loads all of torch.distributed.pipelining.
        from lockstep.strategies.pipeline import watch_schedule  # noqa: PLC0415  # no other loop needs it

        watch_schedule(monitor, schedule)
    modules = _as_list(model, torch.nn.Module)
    for module in modules:
        StepHooks(monitor, module, calls=schedule is None)
    replicas = watch_replicas(monitor, modules, has_shard_coordinates=monitor.has_mesh)
    for step_optimizer in _as_list(optimizer, torch.optim.Optimizer):
        pre_step_hook = watch_optimizer(monitor, step_optimizer)
        if replicas is not None:
            replicas.watch(pre_step_hook)


def _as_list(given: T | Iterable[T] | None, kind: type[T]) -> list[T]:
    if given is None:
        return []
    return [given] if isinstance(given, kind) else list(given)  # type: ignore[arg-type]  # one object is no iterable
