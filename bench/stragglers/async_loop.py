"""The same training as ``loop.py`` on a device that runs behind the host: its streams are threads.

The host's calls return at once; it waits only where it reads the loss. Besides the pages, this
leaves the rows as they were before the device's times came, in a job of its own: what a report
would say that knows the host's clock only.
"""

import gc
import json
import mmap
import os
import random
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from async_device import cuda
from async_device.communicator import Communicator, Transfers
from async_device.strategies import (
    give_streams_to_fsdp,
    reduce_over,
    replace_collectives,
    replace_transfers,
)
from loop import STRATEGIES, WIDTHS, Faults, forward_backward, new_sidecar
from plan import HEALTHY, HOST_JOB, PROGRAM_FILE, Course
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import lockstep
from lockstep.recorder import device
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import DEFAULT_ROWS, RING_OFFSET, ROW

_COLLECTIVE_SECONDS = {"ddp": 0.0005, "fsdp2": 0.0003, "pipeline": 0.0003}
_NOISE = 0.01  # of each kernel's duration, one standard deviation
_AHEAD = 2  # steps by which the host may run before the device while it reads no loss


class Kernels:
    """Launches kernels, each a little shorter or longer than programmed.

    Attributes:
        seconds: launched so far.
    """

    def __init__(self, seed: int) -> None:
        self._random, self.seconds = random.Random(seed), 0.0

    def __call__(self, seconds: float) -> None:
        """Launches a kernel of about that duration."""
        seconds *= max(0.1, self._random.gauss(1.0, _NOISE))
        self.seconds += seconds
        cuda.current_stream().launch(seconds)


class HostRows:
    """Keeps each row as the step's end wrote it, in a page of another job."""

    def __init__(self, root: Path, job_id: str, rank: int) -> None:
        self._root, self._rank, self._rows = root, rank, bytearray()
        self._path = page_path(root, job_id, 0, rank)
        with self._path.open("rb") as page:
            self._page = mmap.mmap(page.fileno(), 0, access=mmap.ACCESS_READ)

    def step_ended(self, number: int) -> None:
        """Copies the newest row."""
        begin = RING_OFFSET + number % DEFAULT_ROWS * ROW.size
        self._rows += self._page[begin : begin + ROW.size]

    def write(self) -> None:
        """Writes the other job's page."""
        page = bytearray(self._page[:])
        page[RING_OFFSET : RING_OFFSET + len(self._rows)] = self._rows
        path = page_path(self._root, HOST_JOB, 0, self._rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page)


class Pace:
    """Keeps the host at most so far ahead of the device as the plan wants."""

    def __init__(self, course: Course) -> None:
        # It runs ahead from before the trial, or the first slow loader would find an empty stream.
        self._hidden = [
            (trial.start - HEALTHY // 2, trial.start + trial.steps)
            for trial in course.trials
            if trial.origin == "hidden"
        ]
        self._ends: deque[Any] = deque()
        self._loss_every = course.loss_every

    def step_ended(self, step: int) -> None:
        """Reads the loss, or waits for an earlier step where a slow loader is to be hidden."""
        self._ends.append(cuda.current_stream().record_event())
        is_ahead = any(first <= step < last for first, last in self._hidden)
        if (step + 1) % self._loss_every:
            return
        while len(self._ends) > (_AHEAD if is_ahead else 0):
            self._ends.popleft().synchronize()


def _build(strategy: str, faults: Faults, course: Course) -> tuple[Any, Any]:
    """Model and schedule of a strategy, whose collectives are those of the asynchronous device."""
    communicator = Communicator(_COLLECTIVE_SECONDS[strategy])
    replace_collectives(communicator, lambda: faults.take("collective"))
    if strategy == "fsdp2":
        give_streams_to_fsdp()
    if strategy == "pipeline":
        replace_transfers(Transfers(_COLLECTIVE_SECONDS[strategy]))
    model, schedule = STRATEGIES[strategy](faults, course)
    if isinstance(model, DistributedDataParallel):
        reduce_over(model, communicator)
    return model, schedule


def _train(strategy: str, root: Path, course: Course) -> None:
    rank = dist.get_rank()
    kernels = Kernels(course.seed * dist.get_world_size() + rank)
    faults, sidecar = Faults(course.trials, kernels), new_sidecar(course, root)
    faults.step_seconds = course.step_seconds_of(strategy, dist.get_world_size())
    model, schedule = _build(strategy, faults, course)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    device.stand_in = cuda if course.on_device else None
    environment = {**os.environ, "LOCKSTEP_JOB_ID": strategy}
    monitor = lockstep.attach(
        model, optimizer, schedule=schedule, root=root, environment=environment
    )
    pace, host_rows = Pace(course), HostRows(root, strategy, rank)

    def optimize(*_: Any) -> None:
        kernels(course.forward_seconds)
        faults.at("optimizer")

    optimizer.register_step_pre_hook(optimize)
    batch, exposed = torch.ones(2 * course.micro_batches, WIDTHS[strategy]), list[int]()
    ends: list[cuda.Event] = []
    batches = sidecar.batches(_batches(batch, faults, course, exposed))
    for step, inputs in enumerate(monitor.prepare(batches)):
        with sidecar.step(model):
            forward_backward(model, schedule, inputs, sidecar)
            dist.all_reduce(torch.zeros(()))  # of clipping: the ranks' steps end together
            with sidecar.section("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
        pace.step_ended(step)
        ends.append(cuda.current_stream().record_event())
        monitor.step()
        host_rows.step_ended(step)
    host_rows.write()
    monitor.close()
    sidecar.close()
    program = {
        "kernel_seconds": kernels.seconds,
        "exposed_steps": exposed,
        # When the device truly ended each step.
        "ends_ns": [event.at_ns for event in ends],
    }
    (root / PROGRAM_FILE.format(rank=rank)).write_text(json.dumps(program), encoding="utf-8")


def _batches(batch: Tensor, faults: Faults, course: Course, exposed: list[int]) -> Any:
    """Yields batches; ``exposed`` takes the steps whose hidden loader the device did wait for."""
    for step in range(course.steps):
        faults.begin(step)
        faults.at("loader")
        if seconds := faults.take("hidden"):
            time.sleep(seconds)
            if cuda.current_stream().query():
                exposed.append(step)
        yield batch


def main(strategy: str, root: Path, plan: Path) -> None:
    """Trains through all trials, and leaves."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    _train(strategy, root, Course.read(plan))
    dist.barrier()
    gc.collect()  # see loop.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
