"""One rank in a PID namespace of its own: DDP over gloo, watched, with a child that outlives it.

The child plays a worker of a loader: it inherits the page's mapping and open files. A rank
whose peer was killed waits for ever, as one with NCCL would; gloo alone would raise.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import distributed

import lockstep

_WORK_SECONDS, _SLOW_SECONDS = 0.2, 0.3
_FOR_EVER_SECONDS = 3600.0


class Layer(torch.nn.Module):
    """A small layer whose work is a sleep; of one rank a longer one while a file exists."""

    def __init__(self, slow_file: Path, *, may_be_slow: bool) -> None:
        super().__init__()
        self._linear = torch.nn.Linear(8, 8)
        self._slow_file, self._may_be_slow = slow_file, may_be_slow

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The layer's output, later than it could be."""
        is_slow = self._may_be_slow and self._slow_file.exists()
        time.sleep(_WORK_SECONDS + (_SLOW_SECONDS if is_slow else 0.0))
        output: torch.Tensor = self._linear(batch)
        return output


def batches() -> Iterator[torch.Tensor]:
    """Batches without end."""
    while True:
        yield torch.ones(4, 8)


def main() -> None:
    """Trains until the process is killed."""
    distributed.init_process_group("gloo")
    layer = Layer(Path(sys.argv[1]), may_be_slow=os.environ["RANK"] == "1")
    model = torch.nn.parallel.DistributedDataParallel(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    monitor = lockstep.attach(model, optimizer)
    if os.fork() == 0:
        time.sleep(_FOR_EVER_SECONDS)
        os._exit(0)
    for batch in monitor.prepare(batches()):
        loss = model(batch).square().mean()
        try:
            loss.backward()
        except RuntimeError:
            time.sleep(_FOR_EVER_SECONDS)
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss=float(loss.detach()), tokens=32)


if __name__ == "__main__":
    main()
