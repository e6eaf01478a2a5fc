"""Finds out what is to be watched, and hangs a monitor on it: one attach point a strategy."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from lockstep.monitor.fingerprints import watch_replicas
from lockstep.monitor.live import LiveMonitor
from lockstep.strategies import waits
from lockstep.strategies.hooks import StepHooks, watch_optimizer


def watch(
    monitor: LiveMonitor,
    model: torch.nn.Module | Iterable[torch.nn.Module] | None,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
    schedule: Any = None,
) -> None:
    """Hangs a monitor on models, optimizers and the schedule of a pipeline."""
    waits.listen(monitor)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        from lockstep.strategies.collectives import watch_collectives  # noqa: PLC0415  # several ranks only
        from lockstep.strategies.functional_collectives import watch_functional_collectives  # noqa: PLC0415  # the same

        watch_collectives()
        watch_functional_collectives()
    if schedule is not None:
        from lockstep.strategies.pipeline import watch_schedule  # noqa: PLC0415  # loads all of pipelining

        watch_schedule(monitor, schedule)
    modules = _several(model, torch.nn.Module)
    for module in modules:
        StepHooks(monitor, module, calls=schedule is None)
    replicas = watch_replicas(monitor, modules, shards_known=monitor.has_mesh)
    for one in _several(optimizer, torch.optim.Optimizer):
        before = watch_optimizer(monitor, one)
        if replicas is not None:
            replicas.watch(before)


def _several(given: Any, kind: type) -> list[Any]:
    if given is None:
        return []
    return [given] if isinstance(given, kind) else list(given)
