"""Runs a training script whose one rank is slow, by the environment; the script knows nothing.

SLOW_SCRIPT: the script. SLOW_RANK: the rank. SLOW_PHASE: data, forward or save. SLOW_SECONDS: in
each batch, or in each file.
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
DELAYED: dict[str, tuple[Any, str]] = {
    "data": (_MapDatasetFetcher, "fetch"),
    "forward": (torch.nn.Embedding, "forward"),
    "save": (torch.serialization, "_save"),
}
"""What is late in each phase; the file format of torch is inside of ``torch.save``."""


def delayed(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, late on the slow rank."""

    def call(*args: Any, **kwargs: Any) -> Any:
        is_training = torch.is_grad_enabled()
        if is_training and dist.is_initialized() and dist.get_rank() == RANK:
            time.sleep(SECONDS)
        return original(*args, **kwargs)

    return call


def main() -> None:
    """Runs the script in this process."""
    owner, attribute = DELAYED[PHASE]
    setattr(owner, attribute, delayed(getattr(owner, attribute)))
    # Not by runpy, which puts the script's name into the command line.
    path = os.environ["SLOW_SCRIPT"]
    code = compile(Path(path).read_bytes(), path, "exec")
    exec(code, {"__name__": "__main__", "__file__": path})  # noqa: S102  # one of our examples


if __name__ == "__main__":
    main()
