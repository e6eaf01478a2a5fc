"""A training loop in which ranks wait for each other now and then: ``waiting_ranks.py KIND TWIN``.

The loop is as people write it, with the lines that ``lockstep instrument`` proposes. Each kind has
a healthy twin, in which the same work is on all ranks or is quick. Ranks write what they planted.
"""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import lockstep

STEPS, _BATCH_SIZE, _WIDTH = 240, 16, 64
_TIMEOUT = timedelta(seconds=20)
_DEVICE_SECONDS = 0.02
_EVALUATE_EVERY, _EVALUATION_SECONDS = 40, 0.6
_LOG_EVERY, _WRITE_SECONDS = 10, 0.15
_STALL_EVERY, _STALL_SECONDS = 6, 0.12
_COLLECT_EVERY, _HEAP_OBJECTS = 40, 100_000
_EXTRA_STEP, _LONGER_RANK = 120, 2
PLANTED = "planted-{rank}"


class Planted:
    """What this rank planted, a line a stroke: its seconds."""

    def __init__(self) -> None:
        folder = Path(os.environ["LOCKSTEP_DIR"])
        self._file = (folder / PLANTED.format(rank=dist.get_rank())).open("a", buffering=1)

    def run(self, work: Callable[[], Any]) -> None:
        """Does it, and notes its time."""
        begin = time.perf_counter()
        work()
        self._file.write(f"{time.perf_counter() - begin}\n")


class Shard(IterableDataset[Tensor]):
    """The samples of one rank.

    Args:
        steps: batches of it.
        before: called before the first sample of a batch, with its number.
    """

    def __init__(self, steps: int, before: Callable[[int], None]) -> None:
        self._steps, self._before = steps, before

    def __iter__(self) -> Iterator[Tensor]:
        for step in range(self._steps):
            self._before(step)
            yield from torch.randn(_BATCH_SIZE, _WIDTH)


class Device(nn.Module):
    """Takes the time that a device would: four ranks that compute have no core each."""

    def forward(self, samples: Tensor) -> Tensor:
        """The samples, later."""
        time.sleep(_DEVICE_SECONDS)
        return samples


def _evaluate(model: nn.Module, held_out: Tensor) -> None:
    end = time.perf_counter() + _EVALUATION_SECONDS
    with torch.no_grad():
        while time.perf_counter() < end:
            model(held_out).square().mean().item()


class Strokes:
    """What a kind does on top of training, before a batch and after a step."""

    def __init__(self, kind: str, twin: str, model: nn.Module) -> None:
        self.kind, self.is_healthy, self._model = kind, twin == "healthy", model
        self.rank, self._planted = dist.get_rank(), Planted()
        self._held_out = torch.randn(256, _WIDTH)
        gc.disable()
        self._heap = [[step] for step in range(0 if self.is_healthy else _HEAP_OBJECTS)]

    @property
    def steps(self) -> int:
        """Batches of this rank."""
        is_longer = self.kind == "uneven" and self.rank == _LONGER_RANK and not self.is_healthy
        return STEPS + is_longer

    def before(self, step: int) -> None:
        """The loader's part."""
        if self.kind == "loader" and not self.is_healthy:
            stroke, rest = divmod(step, _STALL_EVERY)
            if rest == 0 and stroke % dist.get_world_size() == self.rank:
                self._planted.run(lambda: time.sleep(_STALL_SECONDS))

    def after(self, step: int) -> None:
        """The script's part."""
        on_rank_0 = self.rank == 0 or self.is_healthy
        if self.kind == "collector" and step % _COLLECT_EVERY == 10 * self.rank:
            self._planted.run(gc.collect)
        if self.kind == "evaluation" and step % _EVALUATE_EVERY == 0 and on_rank_0:
            self._planted.run(lambda: _evaluate(self._model, self._held_out))
        if self.kind == "logging" and step % _LOG_EVERY == 0 and self.rank == 0:
            seconds = 0.001 if self.is_healthy else _WRITE_SECONDS
            self._planted.run(lambda: time.sleep(seconds))
        if self.kind == "barrier" and step == _EXTRA_STEP and (self.rank == 1 or self.is_healthy):
            dist.barrier()


def _train(kind: str, twin: str) -> None:
    layers = (Device(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU())
    inner = nn.Sequential(*layers, nn.Linear(_WIDTH, 1))
    strokes = Strokes(kind, twin, inner)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Shard(strokes.steps, strokes.before), batch_size=_BATCH_SIZE)
    monitor = lockstep.attach(model, optimizer)
    if twin == "healthy":
        gc.freeze()  # what was imported is never looked at
    for step, batch in enumerate(monitor.prepare(loader), start=1):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss, samples=len(batch))
        strokes.after(step)
    monitor.close()


def main() -> None:
    """Trains one kind, healthy or not."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    _train(*sys.argv[1:])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
