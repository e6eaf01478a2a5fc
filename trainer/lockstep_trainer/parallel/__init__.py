"""How the work is shared among the ranks: one file and one line here for each strategy."""

from collections.abc import Callable
from typing import TypeAlias

import torch

from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT
from lockstep_trainer.parallel.ddp import data_parallel
from lockstep_trainer.world import World

Strategy: TypeAlias = Callable[[GPT, World, Layout], torch.nn.Module]

STRATEGIES: dict[str, Strategy] = {
    "ddp": data_parallel,
}
