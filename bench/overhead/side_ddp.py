"""Real DDP steps of two gloo ranks: one model bare, its twin watched, step by step in turn.

A second bare twin in the watched one's place tells how far the pairs can be trusted.
"""

import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pairs import in_pairs, tell
from torch.nn.parallel import DistributedDataParallel
from trained import Trained

_ROOT = Path("/dev/shm/lockstep-bench-ddp")  # noqa: S108  # a page must lie on a tmpfs
_WIDTH, _LAYERS, _BATCH = 256, 6, 128  # some 8 ms a step on one core a rank


def _made() -> Trained:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    return Trained(model, torch.randn(_BATCH, _WIDTH))


def main() -> None:
    """Measures on all ranks; the first tells its pairs."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bare, twin, watched = _made(), _made(), _made()
    watched.watch(_ROOT, {"LOCKSTEP_JOB_ID": "bench-ddp"})
    pairs = int(os.environ["BENCH_ROUND_PAIRS"])
    figures = {
        "twin": in_pairs(bare, twin, pairs=pairs, num_steps=1),
        "ddp": in_pairs(bare, watched, pairs=pairs, num_steps=1),
        "twin busy": in_pairs(bare, twin, pairs=pairs, num_steps=1, clock=time.thread_time_ns),
        "ddp busy": in_pairs(bare, watched, pairs=pairs, num_steps=1, clock=time.thread_time_ns),
    }
    dist.barrier()
    if dist.get_rank() == 0:
        tell(figures)
        shutil.rmtree(_ROOT, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
