"""Real DDP steps of two gloo ranks: one model, bare and watched in turn.

Pairs of steps that are both bare tell how far the others can be trusted.
"""

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from pairs import in_turns, tell
from torch.nn.parallel import DistributedDataParallel
from trained import Trained

_ROOT = Path("/dev/shm/lockstep-bench-ddp")  # noqa: S108  # a page must lie on a tmpfs
_SETTLES = 20  # steps, until no hook comes or goes any more
# Some 8 ms a step on one core a rank. Few parameters and many samples: what the ranks exchange
# is as small as in life, beside the work, and the time that they wait does not hide what we add.
_WIDTH, _LAYERS, _BATCH = 128, 6, 800


def _made() -> Trained:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    return Trained(model, torch.randn(_BATCH, _WIDTH))


def main() -> None:
    """Measures on all ranks; the first tells its pairs."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trained = _made()
    trained.watch(_ROOT, {"LOCKSTEP_JOB_ID": "bench-ddp"})
    for _ in range(_SETTLES):
        trained()
    trained.keep_hooks()
    pairs = int(os.environ["BENCH_ROUND_PAIRS"])
    figures = in_turns(trained, lambda on: trained.hang(on=on), pairs=pairs)
    dist.barrier()
    if dist.get_rank() == 0:
        tell(figures)
        shutil.rmtree(_ROOT, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
