"""A short DDP run of gloo ranks that Lockstep and TraceML record at once: ``competitor_run.py``.

Run under TraceML's launcher. BENCH_ORIGIN says where rank 2 is slow (data, forward, backward or
nowhere), BENCH_ROOT where Lockstep's pages go.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import traceml_ai as traceml
from torch.nn.parallel import DistributedDataParallel

import lockstep

_SLOW_RANK, _SLOW_SECONDS, _NUM_STEPS = 2, 0.02, 200
_PHASE_SECONDS = {"data": 0.002, "forward": 0.004, "backward": 0.008}


class Data(torch.utils.data.Dataset[torch.Tensor]):
    """Batches that take 2 ms each."""

    def __len__(self) -> int:
        return _NUM_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        spend("data")
        return torch.full((64,), float(index % 7))


class Device(torch.autograd.Function):
    """Sleeps for the time that a device would take, forward and backward."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        """A copy of the input, after the time of a forward pass."""
        del ctx
        spend("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        """The gradient, after the time of a backward pass."""
        del ctx
        spend("backward")
        return gradients[0]


class Model(torch.nn.Module):
    """Two small layers with the time of large ones between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of both layers."""
        slowed: torch.Tensor = Device.apply(self.first(x))  # type: ignore[no-untyped-call]  # torch
        last: torch.Tensor = self.last(slowed)
        return last


def spend(phase: str) -> None:
    """Sleeps for the time of a phase, and for more on the slow rank."""
    slow = dist.get_rank() == _SLOW_RANK and os.environ["BENCH_ORIGIN"] == phase
    time.sleep(_PHASE_SECONDS[phase] + (_SLOW_SECONDS if slow else 0.0))


def main() -> None:
    """Trains while both recorders watch."""
    torch.set_num_threads(1)
    traceml.init()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    environment = {**os.environ, "LOCKSTEP_JOB_ID": "both"}
    monitor = lockstep.attach(
        model, optimizer, root=Path(os.environ["BENCH_ROOT"]), environment=environment
    )
    for batch in monitor.prepare(torch.utils.data.DataLoader(Data(), batch_size=1)):
        with traceml.trace_step(model):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
        monitor.step()
    monitor.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
