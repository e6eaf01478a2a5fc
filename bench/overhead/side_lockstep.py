"""Lockstep's side: marks and page alone, the backward mark alone, and a whole watched step."""

import os
import shutil
from pathlib import Path

import torch
from pairs import in_pairs, tell
from steps import Small

import lockstep

_ROOT = Path("/dev/shm/lockstep-bench")  # noqa: S108  # a page must lie on a tmpfs
_TEN = (
    "data",
    "forward",
    "backward",
    "sync",
    "other",
    "optimizer",
    "data",
    "eval",
    "other",
    "data",
)


def _monitor(
    name: str, small: Small | None = None, *, optimizer: bool = False
) -> lockstep.NoopMonitor:
    monitor = lockstep.attach(
        small.model if small else None,
        small.optimizer if small and optimizer else None,
        root=_ROOT,
        environment={"LOCKSTEP_JOB_ID": f"bench-{name}"},
    )
    assert monitor.enabled, "the bench needs a tmpfs at /dev/shm"
    return monitor


def _ten_phases(monitor: lockstep.NoopMonitor) -> None:
    for name in _TEN:
        monitor.enter_phase(name)
    monitor.step(loss=1.5, tokens=1024, samples=8, gradient_norm=0.7, learning_rate=1e-3)


def _with_empty_hook() -> Small:
    """What torch itself takes for the forward hook that anybody hangs on a model."""
    small = Small.fresh()
    small.model.register_forward_pre_hook(lambda *_: None)
    return small


def main() -> None:
    """Measures, and tells the pairs."""
    torch.set_num_threads(1)
    pairs = int(os.environ["BENCH_ROUND_PAIRS"])
    shutil.rmtree(_ROOT, ignore_errors=True)
    try:
        off, on = lockstep.disabled(), _monitor("ten")
        empty, marked, whole, bare = (
            _with_empty_hook(),
            Small.fresh(),
            Small.fresh(),
            Small.fresh(),
        )
        _monitor("backward", marked)
        watching = _monitor("whole", whole, optimizer=True)

        def watched() -> None:
            whole.step()
            watching.step(loss=1.5, tokens=1024, samples=8)

        tell(
            {
                "ten phases": in_pairs(
                    lambda: _ten_phases(off), lambda: _ten_phases(on), pairs=pairs, num_steps=2000
                ),
                "backward": in_pairs(empty.step, marked.step, pairs=pairs, num_steps=300),
                "step": in_pairs(bare.step, watched, pairs=pairs, num_steps=300),
            }
        )
    finally:
        shutil.rmtree(_ROOT, ignore_errors=True)


if __name__ == "__main__":
    main()
