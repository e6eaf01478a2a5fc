"""Real DDP steps of two gloo ranks: one model bare, its twin watched, step by step in turn.

A second bare twin in the watched one's place tells how far the pairs can be trusted.
"""

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from pairs import in_pairs, tell
from torch.nn.parallel import DistributedDataParallel

import lockstep

_ROOT = Path("/dev/shm/lockstep-bench-ddp")  # noqa: S108  # a page must lie on a tmpfs
_WIDTH, _LAYERS, _BATCH = 256, 6, 128  # some 8 ms a step on one core a rank


class Step:
    """One DDP model with all that belongs to it; called, it trains one step."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(_BATCH, _WIDTH)
        self.monitor = lockstep.disabled()

    def watch(self) -> None:
        """Attaches Lockstep as a user would."""
        environment = {**os.environ, "LOCKSTEP_JOB_ID": "bench-ddp"}
        self.monitor = lockstep.attach(
            self.model, self.optimizer, root=_ROOT, environment=environment
        )
        assert self.monitor.enabled, "the bench needs a tmpfs at /dev/shm"

    def __call__(self) -> None:
        """A step."""
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.monitor.step(loss=1.5, tokens=1024, samples=8)


def main() -> None:
    """Measures on all ranks; the first tells its pairs."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bare, twin, watched = Step(), Step(), Step()
    watched.watch()
    pairs = int(os.environ["BENCH_ROUND_PAIRS"])
    figures = {
        "twin": in_pairs(bare, twin, pairs=pairs, num_steps=1),
        "ddp": in_pairs(bare, watched, pairs=pairs, num_steps=1),
    }
    dist.barrier()
    if dist.get_rank() == 0:
        tell(figures)
        shutil.rmtree(_ROOT, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
