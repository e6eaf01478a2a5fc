"""Runs a training script whose one rank is slow, by the environment; the script knows nothing.

SLOW_SCRIPT: the script. SLOW_RANK: the rank. SLOW_PHASE: data or forward. SLOW_SECONDS: in each
batch.
"""

# By the environment, for a launcher that starts its ranks again repeats the command line.

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data._utils.fetch import _MapDatasetFetcher

RANK, PHASE = int(os.environ["SLOW_RANK"]), os.environ["SLOW_PHASE"]
SECONDS = float(os.environ["SLOW_SECONDS"])


def delayed(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, late on the slow rank."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_training = torch.is_grad_enabled()
        if is_training and dist.is_initialized() and dist.get_rank() == RANK:
            time.sleep(SECONDS)
        return original(self, *args, **kwargs)

    return call


def main() -> None:
    """Runs the script in this process."""
    owner: Any = {"data": _MapDatasetFetcher, "forward": torch.nn.Embedding}[PHASE]
    method = {"data": "fetch", "forward": "forward"}[PHASE]
    setattr(owner, method, delayed(getattr(owner, method)))
    # Not by runpy, which puts the script's name into the command line.
    path = os.environ["SLOW_SCRIPT"]
    code = compile(Path(path).read_bytes(), path, "exec")
    exec(code, {"__name__": "__main__", "__file__": path})  # noqa: S102  # one of our examples


if __name__ == "__main__":
    main()
