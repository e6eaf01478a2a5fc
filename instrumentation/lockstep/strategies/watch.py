"""Instruments what ``attach`` is given: models, optimizers and the schedule of a pipeline."""

import logging
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from lockstep.monitor.live import LiveMonitor
from lockstep.patches import loop_calls, waits
from lockstep.patches.install import install, install_on
from lockstep.patches.layers import ddp_around, is_compiled, layers
from lockstep.patches.loop_calls import call_when_initialised
from lockstep.recorder.interface import Ignored, StepRecorder
from lockstep.recorder.phases import BACKWARD, FORWARD, OTHER, SYNC

_SETTLED_AT_STEP = 8
# A module that runs there begins nothing: a part of a forward, or one that is computed again.
_INSIDE = frozenset({FORWARD, BACKWARD, SYNC})


class _Mark:
    """A hook of a module that enters a phase where it is due."""

    def __init__(self, recorder: StepRecorder, is_due: Callable[[int], bool], enter: Any) -> None:
        self._recorder, self._is_due, self._enter = recorder, is_due, enter
        self.has_fired = False

    def __call__(self, *_: Any) -> None:
        if not is_dynamo_compiling() and self._is_due(self._recorder.phase):
            self.has_fired = True
            self._enter()

    def __reduce__(self) -> tuple[type[Ignored], tuple[()]]:
        return Ignored, ()  # a copy is not watched


def _ends(phase: int) -> bool:
    return phase == FORWARD and not torch.is_grad_enabled()


class SubmoduleSearch:
    """Looks for the forward of models whose own call never fires; holds none of them.

    A loop may call ``model.forward``, other methods, or parts. Every module inside then marks where
    a forward begins, in a few of the first steps; those that ever began one keep their mark, as do
    ends of models that run without gradients, behind which an environment may step.

    Args:
        marks: what to call when a forward begins, by model.
    """

    def __init__(
        self, recorder: StepRecorder, marks: "WeakKeyDictionary[torch.nn.Module, Any]"
    ) -> None:
        self._recorder, self._marks = recorder, marks
        self._found: list[tuple[_Mark, RemovableHandle]] = []
        self._has_begun = self._is_over = False
        new_end = partial(_Mark, recorder, _ends, partial(recorder.enter_code, OTHER))
        self._ends = [(end := new_end(), model.register_forward_hook(end)) for model in marks]

    def inspect_steps(self, steps: int, *, has_forward: bool) -> None:
        """Begins the search after a step without a forward, and ends it once it has found some."""
        if self._is_over:
            return
        if not self._has_begun:
            self._has_begun, self._is_over = True, has_forward
            if not has_forward:
                self._begin()
        elif steps >= _SETTLED_AT_STEP and any(begin.has_fired for begin, _ in self._found):
            self.end()

    def _begin(self) -> None:
        for model, enter in self._marks.items():
            for module in model.modules():
                if module is not model and not isinstance(module, torch.jit.ScriptModule):
                    begin = _Mark(self._recorder, lambda phase: phase not in _INSIDE, enter)
                    handle = module.register_forward_pre_hook(begin)
                    self._found.append((begin, handle))

    def end(self) -> bool:
        """Takes the marks off that never began a forward; returns whether others are left."""
        self._is_over = True
        for hook, handle in (*self._found, *self._ends):
            if not hook.has_fired:
                handle.remove()
        self._found = [found for found in self._found if found[0].has_fired]
        return bool(self._found)


def _search_submodules(monitor: LiveMonitor, models: list[torch.nn.Module]) -> None:
    """Has the first steps of a monitor looked at; not in what is compiled, which a hook breaks."""
    marks: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()
    for model in models:
        enter = getattr(model, loop_calls.ATTRIBUTE, None)
        if enter is not None and not any(map(is_compiled, layers(model))):
            marks[model] = enter
    monitor.first_steps.search = SubmoduleSearch(monitor.recorder, marks)


log = logging.getLogger("lockstep")
T = TypeVar("T")
_HOOKS = "strategies.hooks"
_OPTIMIZER, _REPLICAS = f"{_HOOKS}:watch_optimizer", "monitor.fingerprints:watch_replicas"


def watch(
    monitor: LiveMonitor,
    model: torch.nn.Module | Iterable[torch.nn.Module] | None,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
    schedule: Any = None,
) -> None:
    """Reports to a monitor what models, optimizers and a pipeline's schedule do from now on."""
    run = monitor.parts.run
    run("collectives", _watch_collectives, monitor)
    run("checkpoints", install, "saves")
    if schedule is not None:
        run("pipeline", _watch_schedule, monitor, schedule)
    modules = _as_list(model, torch.nn.Module)
    for module in modules:
        run("forward", _call, f"{_HOOKS}:StepHooks", monitor, module, calls=schedule is None)
    if modules and schedule is None:
        run("forward", _search_submodules, monitor, modules)
    has_shards = {"has_shard_coordinates": monitor.has_mesh}
    replicas = run("fingerprints", _call, _REPLICAS, monitor, modules, **has_shards)
    optimizers = [*map(_unwrap, _as_list(optimizer, torch.optim.Optimizer))]
    if not optimizers:
        run("optimizer", _call, f"{_HOOKS}:watch_all_optimizers", monitor)
    for step_optimizer in optimizers:
        pre_step_hook = run("optimizer", _call, _OPTIMIZER, monitor, step_optimizer)
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


def _call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Calls what ``module:name`` is, of a module that is loaded for it."""
    return resolve_name(f"lockstep.{name}")(*args, **kwargs)


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
