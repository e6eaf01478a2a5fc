"""Real DDP steps of two gloo ranks: one model, bare and watched in turn.

Pairs of steps that are both bare show the noise of the others.
"""

import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pairs import alternate_bare_and_watched, page_root, pairs_a_round, write_pairs
from torch.nn.parallel import DistributedDataParallel
from trained import Trained

# Few parameters and many samples: what the ranks exchange is as small as in life, beside the work,
# and the time that they wait does not hide what we add. The batch below begins the search.
_WIDTH, _LAYERS, _BATCH = 128, 6, 1050
# What a step takes; a batch that is the same everywhere takes 6 to 9 ms by machine and day.
_STEP_SECONDS = 0.008
_TRIALS, _TRIAL_STEPS = 4, 60


def _take_a_core() -> None:
    """One core a rank, as ranks have theirs where there is a GPU for each."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})


def _quieten_gloo() -> None:
    """Lowers the priority of a thread of gloo's that spins, and keeps the loop on its core.

    That thread spins while another of its process holds what it waits for. Where both share a core
    it does so until the slice of the scheduler is over, 1.6 or 4 ms, in every second bare step.
    """
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text(encoding="ascii").strip() == "gloo_tcp_loop":
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _create_trained() -> Trained:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    return Trained(model, torch.randn(_BATCH, _WIDTH))


def _set_step_time(trained: Trained) -> None:
    """Chooses the batch, the same in all ranks, with which a bare step takes ``_STEP_SECONDS``."""
    size = torch.tensor([_BATCH])
    for _ in range(_TRIALS):
        seconds = []
        for _ in range(_TRIAL_STEPS):
            began = time.perf_counter()
            trained()
            seconds.append(time.perf_counter() - began)
        size = (size * _STEP_SECONDS / statistics.median(seconds)).round().long()
        dist.broadcast(size, 0)
        trained.use_batch(torch.randn(int(size), _WIDTH))


def main() -> None:
    """Measures on all ranks; the first writes its pairs."""
    torch.set_num_threads(1)
    _take_a_core()
    dist.init_process_group("gloo")
    trained = _create_trained()
    _quieten_gloo()
    trained.watch(page_root(), {"LOCKSTEP_JOB_ID": "bench-ddp"})
    trained.settle()
    trained.hook(on=False)
    _set_step_time(trained)
    pairs = pairs_a_round()
    figures = alternate_bare_and_watched(trained, lambda on: trained.hook(on=on), pairs=pairs)
    dist.barrier()
    if dist.get_rank() == 0:
        write_pairs(figures)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
