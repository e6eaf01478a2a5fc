"""Whole steps on a GPU, every one of them sampled by CUDA events; tells nothing without a GPU."""

import os
import shutil
from pathlib import Path

import torch
from pairs import in_pairs, tell

import lockstep

_ROOT = Path("/dev/shm/lockstep-bench-cuda")  # noqa: S108  # a page must lie on a tmpfs
_WIDTH, _LAYERS, _BATCH = 1024, 8, 256


class Step:
    """A model on the GPU with all that belongs to it; called, it trains one step."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(_BATCH, _WIDTH, device="cuda")
        self.monitor = lockstep.disabled()

    def watch(self) -> None:
        """Attaches Lockstep, sampling each step."""
        told = {"LOCKSTEP_JOB_ID": "bench-cuda", "LOCKSTEP_SAMPLE_EVERY": "1"}
        self.monitor = lockstep.attach(
            self.model, self.optimizer, root=_ROOT, environment={**os.environ, **told}
        )
        assert self.monitor.enabled, "the bench needs a tmpfs at /dev/shm"

    def __call__(self) -> None:
        """A step; the loss stays on the GPU."""
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.monitor.step(loss=loss.detach(), tokens=1024, samples=8)


def main() -> None:
    """Measures, and tells the pairs."""
    if not torch.cuda.is_available():
        tell({})
        return
    bare, watched = Step(), Step()
    watched.watch()
    pairs = int(os.environ["BENCH_ROUND_PAIRS"])
    try:
        tell({"cuda": in_pairs(bare, watched, pairs=pairs, num_steps=100)})
    finally:
        shutil.rmtree(_ROOT, ignore_errors=True)


if __name__ == "__main__":
    main()
