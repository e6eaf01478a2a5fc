"""Trains by one strategy over gloo while the plan makes ranks slow: ``loop.py STRATEGY ROOT PLAN``.

The work of a device stands in as sleep: ranks that share a few cores would be slow by each other,
which ranks with a GPU each are not. What travels between them is real.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plan import WARM_UP, Course, Trial
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import lockstep

# One weight a layer: gloo cuts a tensor into as many messages as it has elements, up to three for
# each other rank, and on few cores it is messages that cost, not bytes. FSDP2 wants one a rank.
WIDTHS = {"ddp": 1, "fsdp2": 4, "pipeline": 1}


class Faults:
    """Makes this rank slow where and when the plan says.

    Args:
        trials: the plan.
    """

    def __init__(self, trials: tuple[Trial, ...]) -> None:
        self._trials = iter(trials)
        self._trial: Trial | None = next(self._trials, None)
        self._origin, self._seconds = "", 0.0
        self.step_seconds = 0.0

    def begin(self, step: int) -> None:
        """Looks up what this step has for this rank."""
        while self._trial and step >= self._trial.start + self._trial.steps:
            self._trial = next(self._trials, None)
        self._origin = ""
        if self._trial and self._trial.is_slow(step, dist.get_rank(), dist.get_world_size()):
            self._origin = self._trial.origin
            self._seconds = self._trial.percent / 100 * self.step_seconds

    def at(self, origin: str) -> None:
        """Loses the time, once a step."""
        if origin == self._origin:
            self._origin = ""
            time.sleep(self._seconds)


class Device(torch.autograd.Function):
    """Takes the time that a device would, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, faults: Faults, seconds: float) -> Tensor:
        """The input, later."""
        ctx.faults, ctx.seconds = faults, seconds
        time.sleep(seconds)
        faults.at("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient, later."""
        time.sleep(2 * ctx.seconds)
        ctx.faults.at("backward")
        return gradients[0], None, None


class Layer(nn.Module):
    """A few weights with the time of a large layer."""

    def __init__(self, width: int, faults: Faults, seconds: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(width))
        self._faults, self._seconds = faults, seconds

    def forward(self, x: Tensor) -> Tensor:
        """See ``Device``; the node of the clone is in every backward."""
        slowed: Tensor = Device.apply(  # type: ignore[no-untyped-call]  # torch gives it no types
            x * self.weights, self._faults, self._seconds
        )
        return slowed


def _layers(width: int, faults: Faults, course: Course) -> nn.Sequential:
    seconds = course.forward_seconds
    return nn.Sequential(*(Layer(width, faults, seconds) for _ in range(course.layers)))


def _ddp(faults: Faults, course: Course) -> tuple[nn.Module, None]:
    return DistributedDataParallel(_layers(WIDTHS["ddp"], faults, course)), None


def _fsdp2(faults: Faults, course: Course) -> tuple[nn.Module, None]:
    model = _layers(WIDTHS["fsdp2"], faults, course)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, None


def _pipeline(faults: Faults, course: Course) -> tuple[nn.Module, Any]:
    seconds = course.forward_seconds * course.layers / course.micro_batches
    stage = nn.Sequential(Layer(WIDTHS["pipeline"], faults, seconds))
    built = PipelineStage(stage, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    return stage, Schedule1F1B(
        built, course.micro_batches, loss_fn=lambda out, _: out.square().mean()
    )


STRATEGIES = {"ddp": _ddp, "fsdp2": _fsdp2, "pipeline": _pipeline}


def _batches(width: int, faults: Faults, course: Course) -> Iterator[Tensor]:
    batch = torch.randn(2 * course.micro_batches, width)
    for step in range(course.steps):
        faults.begin(step)
        faults.at("loader")
        yield batch


def forward_backward(model: nn.Module, schedule: Any, batch: Tensor) -> None:
    """One step up to its gradients."""
    if schedule is None:
        model(batch).square().mean().backward()
    elif dist.get_rank() == 0:
        schedule.step(batch)
    elif dist.get_rank() == dist.get_world_size() - 1:
        schedule.step(target=batch)
    else:
        schedule.step()


def _late_inside(original: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        faults.at("collective")
        return original(*args, **kwargs)

    return call


def _train(strategy: str, root: Path, course: Course) -> None:
    faults = Faults(course.trials)
    # What a rank loses here it loses inside a collective, after its arrival.
    dist.all_reduce = _late_inside(dist.all_reduce, faults)
    model, schedule = STRATEGIES[strategy](faults, course)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    environment = {**os.environ, "LOCKSTEP_JOB_ID": strategy}
    monitor = lockstep.attach(
        model, optimizer, schedule=schedule, root=root, environment=environment
    )
    optimizer.register_step_pre_hook(lambda *_: faults.at("optimizer"))
    seconds, began = [], time.perf_counter()
    for step, batch in enumerate(monitor.prepare(_batches(WIDTHS[strategy], faults, course))):
        forward_backward(model, schedule, batch)
        if course.clipping:
            dist.all_reduce(torch.zeros(()))  # of its norm: the ranks' steps end together
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
        if step < WARM_UP:
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
            faults.step_seconds = statistics.median(seconds)
    monitor.close()


def main(strategy: str, root: Path, plan: Path) -> None:
    """Trains through all trials, and leaves."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    _train(strategy, root, Course.read(plan))
    dist.barrier()
    # The model goes before the group: a DDP reducer that is the group's last owner ends it while it
    # holds the GIL, joins gloo's thread, and that waits for the GIL to drop the barrier's tensor.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
