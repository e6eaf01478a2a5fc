"""Instruments what ``attach`` is given: models, optimizers and the schedule of a pipeline."""

import logging
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from lockstep.monitor.live import LiveMonitor
from lockstep.patches import waits
from lockstep.patches.groups import call_when_initialised
from lockstep.patches.install import install, install_on
from lockstep.patches.layers import ddp_around
from lockstep.recorder.interface import PhaseHook

if TYPE_CHECKING:
    from lockstep.monitor.fingerprints import Fingerprints

log = logging.getLogger("lockstep")
T = TypeVar("T")


def watch(
    monitor: LiveMonitor,
    model: torch.nn.Module | Iterable[torch.nn.Module] | None,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
    schedule: Any = None,
) -> None:
    """Reports to a monitor what models, optimizers and a pipeline's schedule do from now on."""
    run = monitor.parts.run
    run("collectives", _watch_collectives, monitor)
    run("checkpoints", _watch_saves)
    if schedule is not None:
        run("pipeline", _watch_schedule, monitor, schedule)
    modules = _as_list(model, torch.nn.Module)
    for module in modules:
        run("forward", _watch_model, monitor, module, calls=schedule is None)
    if modules and schedule is None:
        run("forward", _search_submodules, monitor, modules)
    replicas = run("fingerprints", _watch_replicas, monitor, modules)
    optimizers = [*map(_unwrap, _as_list(optimizer, torch.optim.Optimizer))]
    if not optimizers:
        run("optimizer", _watch_all_optimizers, monitor)
    for step_optimizer in optimizers:
        pre_step_hook = run("optimizer", _watch_optimizer, monitor, step_optimizer)
        if replicas is not None and pre_step_hook is not None:
            run("fingerprints", replicas.watch, pre_step_hook)


# Each imports what it needs by itself: a build of torch may lack a module that only one of them is
# for, such as torch.distributed.tensor without distributed. A pipeline loads what others spare.


def _watch_collectives(monitor: LiveMonitor) -> None:
    waits.report_to(monitor, monitor.recorder, monitor.parts)
    install("graphs")
    install("loaders")
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        install("collectives")
        install("functional")
        if "torch.distributed.fsdp" in sys.modules:
            install("fsdp")


def _watch_saves() -> None:
    install("saves")


def _watch_schedule(monitor: LiveMonitor, schedule: Any) -> None:
    """Reports to a monitor what a schedule of ``torch.distributed.pipelining`` does."""
    from lockstep.patches import pipeline  # noqa: PLC0415  # as above
    from lockstep.patches.points import report_missing  # noqa: PLC0415  # as above
    from lockstep.patches.table import STAGE_METHODS  # noqa: PLC0415  # as above

    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    if not all(hasattr(stage, "forward_one_chunk") for stage in stages):
        log.warning(
            "schedule %s is none of torch.distributed.pipelining; its stages are not seen",
            type(schedule).__name__,
        )
        return
    install("pipeline")
    for stage in stages:
        for point in STAGE_METHODS:
            method = point.attribute
            if not hasattr(stage, method):
                report_missing([point])
            elif method in pipeline.CHUNKS:
                install_on(
                    stage,
                    method,
                    pipeline.wrap_chunk(monitor.enter_code, method, stage.stage_index),
                )
            else:
                install_on(stage, method, pipeline.wrap_transfers(method, stage.stage_index))
    install_on(schedule, "step", pipeline.wrap_schedule_step(monitor.enter_code))


def _watch_model(monitor: LiveMonitor, module: torch.nn.Module, *, calls: bool) -> None:
    from lockstep.strategies.hooks import StepHooks  # noqa: PLC0415  # as above

    StepHooks(monitor, module, calls=calls)


def _search_submodules(monitor: LiveMonitor, modules: list[torch.nn.Module]) -> None:
    from lockstep.strategies.search import search_submodules  # noqa: PLC0415  # as above

    search_submodules(monitor, modules)


def _watch_replicas(monitor: LiveMonitor, modules: list[torch.nn.Module]) -> "Fingerprints | None":
    from lockstep.monitor.fingerprints import watch_replicas  # noqa: PLC0415  # as above

    return watch_replicas(monitor, modules, has_shard_coordinates=monitor.has_mesh)


def _watch_optimizer(monitor: LiveMonitor, optimizer: torch.optim.Optimizer) -> PhaseHook:
    from lockstep.strategies.hooks import watch_optimizer  # noqa: PLC0415  # as above

    return watch_optimizer(monitor, optimizer)


def _watch_all_optimizers(monitor: LiveMonitor) -> None:
    from lockstep.strategies.hooks import watch_all_optimizers  # noqa: PLC0415  # as above

    watch_all_optimizers(monitor)


def _as_list(given: T | Iterable[T] | None, kind: type[T]) -> list[T]:
    if given is None:
        return []
    is_several = isinstance(given, Iterable) and not isinstance(given, kind)
    return list(given) if is_several else [given]  # type: ignore[list-item,arg-type]  # wrappers are no Optimizer


def _unwrap(optimizer: Any) -> Any:
    """The optimizer that is stepped in the end: a wrapper's own step calls no hooks."""
    # Those of DeepSpeed, Accelerate and torchft never ran the constructor of torch's Optimizer.
    while "param_groups" not in vars(optimizer) or not isinstance(optimizer, torch.optim.Optimizer):
        names = (name for name in ("optimizer", "optim") if hasattr(optimizer, name))
        if (name := next(names, None)) is None:
            break  # its own step is all that there is
        optimizer = getattr(optimizer, name)
    return optimizer


def call_at_group(callback: Callable[[], object]) -> None:
    """Calls it once, when the default process group has been initialised."""
    install("groups")
    call_when_initialised(callback)


def watch_at_first_forward(model: Any, optimizer: Any, watch: Callable[[Any, Any], object]) -> None:
    """Hands models to ``watch`` when the first is called, or the DDP that calls it."""
    modules = [model] if isinstance(model, torch.nn.Module) else list(model or ())
    if not modules:
        watch(model, optimizer)
        return
    handles: list[Any] = []

    def first_forward(*_: Any) -> None:
        while handles:
            handles.pop().remove()
        watch([ddp_around(module) or module for module in modules], optimizer)

    handles += [module.register_forward_pre_hook(first_forward) for module in modules]
