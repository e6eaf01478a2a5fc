"""Trains by one strategy over gloo while the plan makes ranks slow: ``loop.py STRATEGY ROOT PLAN``.

The work of a device stands in as sleep: ranks that share a few cores would be slow by each other,
which ranks with a GPU each are not. What travels between them is real.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plan import WARM_UP, Trial, last_step
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import lockstep

_LAYERS, _WIDTH, _MICRO_BATCHES = 4, 64, 8
_FORWARD_SECONDS, _BACKWARD_SECONDS = 0.0015, 0.003  # of each layer


class Faults:
    """Makes this rank slow where and when the plan says."""

    def __init__(self, trials: list[Trial]) -> None:
        self._trials = iter(trials)
        self._trial: Trial | None = next(self._trials)
        self._origin, self._seconds = "", 0.0
        self.step_seconds = 0.0

    def begin(self, step: int) -> None:
        """Looks up what this step has for this rank."""
        while self._trial and step >= self._trial.start + self._trial.steps:
            self._trial = next(self._trials, None)
        self._origin = ""
        if self._trial and self._trial.slow_rank(step, dist.get_world_size()) == dist.get_rank():
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
    def forward(ctx: Any, x: Tensor, faults: Faults, share: float) -> Tensor:
        """The input, later."""
        ctx.faults, ctx.share = faults, share
        time.sleep(_FORWARD_SECONDS * share)
        faults.at("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient, later."""
        time.sleep(_BACKWARD_SECONDS * ctx.share)
        ctx.faults.at("backward")
        return gradients[0], None, None


class Layer(nn.Module):
    """A linear layer with the time of a large one."""

    def __init__(self, faults: Faults, share: float) -> None:
        super().__init__()
        self.linear, self._faults, self._share = nn.Linear(_WIDTH, _WIDTH), faults, share

    def forward(self, x: Tensor) -> Tensor:
        """See ``Device``; the node of the clone is in every backward."""
        slowed: Tensor = Device.apply(  # type: ignore[no-untyped-call]  # torch gives it no types
            self.linear(x), self._faults, self._share
        )
        return slowed


def _whole(faults: Faults) -> nn.Sequential:
    return nn.Sequential(*(Layer(faults, 1.0) for _ in range(_LAYERS)))


def _ddp(faults: Faults) -> tuple[nn.Module, None]:
    return DistributedDataParallel(_whole(faults)), None


def _fsdp2(faults: Faults) -> tuple[nn.Module, None]:
    model = _whole(faults)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, None


def _pipeline(faults: Faults) -> tuple[nn.Module, Any]:
    stage = nn.Sequential(Layer(faults, _LAYERS / _MICRO_BATCHES))
    built = PipelineStage(stage, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    return stage, Schedule1F1B(built, _MICRO_BATCHES, loss_fn=lambda out, _: out.square().mean())


_STRATEGIES = {"ddp": _ddp, "fsdp2": _fsdp2, "pipeline": _pipeline}


def _batches(faults: Faults, steps: int) -> Iterator[Tensor]:
    for step in range(steps):
        faults.begin(step)
        faults.at("loader")
        yield torch.randn(2 * _MICRO_BATCHES, _WIDTH)


def _forward_backward(model: nn.Module, schedule: Any, batch: Tensor) -> None:
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


def main(strategy: str, root: Path, plan: Path) -> None:
    """Trains through all trials."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trials = [Trial(**one) for one in json.loads(plan.read_text(encoding="utf-8"))]
    faults = Faults(trials)
    # What a rank loses here it loses inside a collective, after its arrival.
    dist.all_reduce = _late_inside(dist.all_reduce, faults)
    model, schedule = _STRATEGIES[strategy](faults)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    environment = {**os.environ, "LOCKSTEP_JOB_ID": strategy}
    monitor = lockstep.attach(
        model, optimizer, schedule=schedule, root=root, environment=environment
    )
    optimizer.register_step_pre_hook(lambda *_: faults.at("optimizer"))
    took, begun = [], time.perf_counter()
    for step, batch in enumerate(monitor.prepare(_batches(faults, last_step(trials)))):
        _forward_backward(model, schedule, batch)
        norm = torch.zeros(())
        dist.all_reduce(norm)  # as clipping does: the ranks' steps end together
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
        if step < WARM_UP:
            took.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            faults.step_seconds = statistics.median(took)
    monitor.close()
    dist.barrier()
    if dist.get_rank() == 0:
        (root / f"{strategy}.json").write_text(json.dumps(faults.step_seconds), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
