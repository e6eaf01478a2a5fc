"""Whole steps on a GPU, every one of them sampled by CUDA events; tells nothing without a GPU.

One model, bare and watched in turn, as in the steps of DDP.
"""

import os
import shutil
from pathlib import Path

import torch
from pairs import in_turns, tell
from trained import Trained

_ROOT = Path("/dev/shm/lockstep-bench-cuda")  # noqa: S108  # a page must lie on a tmpfs
_WIDTH, _LAYERS, _BATCH = 1024, 8, 256


def _made() -> Trained:
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    return Trained(torch.nn.Sequential(*layers).cuda(), torch.randn(_BATCH, _WIDTH, device="cuda"))


def main() -> None:
    """Measures, and tells the pairs."""
    if not torch.cuda.is_available():
        tell({})
        return
    trained = _made()
    trained.watch(_ROOT, {"LOCKSTEP_JOB_ID": "bench-cuda", "LOCKSTEP_SAMPLE_EVERY": "1"})
    trained.settle()

    def step() -> None:
        trained()
        torch.cuda.synchronize()  # of the bench: what the device does for us counts too

    pairs = int(os.environ["BENCH_ROUND_PAIRS"])
    try:
        tell({"cuda": in_turns(step, lambda on: trained.hang(on=on), pairs=pairs)["wall"]})
    finally:
        shutil.rmtree(_ROOT, ignore_errors=True)


if __name__ == "__main__":
    main()
