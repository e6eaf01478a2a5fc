"""Parallelism strategies: one file and one line here for each."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout, World
from lockstep_trainer.model.gpt import GPT
from lockstep_trainer.parallel.ddp import data_parallel
from lockstep_trainer.parallel.experts import expert_parallel
from lockstep_trainer.parallel.fsdp2 import fully_sharded
from lockstep_trainer.parallel.hybrid import hybrid
from lockstep_trainer.parallel.local_sgd import local_sgd
from lockstep_trainer.parallel.parallel_model import ParallelModel
from lockstep_trainer.parallel.parameter_server import parameter_server
from lockstep_trainer.parallel.pipeline import pipelined
from lockstep_trainer.parallel.tensor import tensor_parallel

Parallelize: TypeAlias = Callable[[GPT, TrainConfig, World, Layout], ParallelModel]


class Strategy(NamedTuple):
    """A strategy: its axes, first the one that fills the world, and whether ranks do own steps."""

    parallelize: Parallelize
    axes: tuple[str, ...]
    is_independent: bool = False


STRATEGIES = {
    "ddp": Strategy(data_parallel, ("dp",)),
    "fsdp2": Strategy(fully_sharded, ("fsdp", "dp")),
    "pp": Strategy(pipelined, ("pp",)),
    "tp": Strategy(tensor_parallel, ("tp",)),
    "ep": Strategy(expert_parallel, ("ep", "dp")),
    "hybrid": Strategy(hybrid, ("dp", "fsdp", "pp", "tp")),
    "local-sgd": Strategy(local_sgd, ("dp",)),
    "parameter-server": Strategy(parameter_server, ("dp",), is_independent=True),
}


def layout_of(config: TrainConfig, world_size: int) -> Layout:
    """The layout of a run in a world; ValueError where strategy, axes or degrees do not fit."""
    if config.strategy not in STRATEGIES:
        raise ValueError(f"--strategy {config.strategy!r} is none of {', '.join(STRATEGIES)}")
    axes = STRATEGIES[config.strategy].axes
    for axis, degree in config.degrees.items():
        if axis not in axes and degree not in {None, 1}:
            raise ValueError(
                f"--{axis} {degree} does not fit --strategy {config.strategy}, which has "
                f"{' and '.join(axes)}; leave it out or choose another strategy"
            )
    return Layout.fill(world_size, axes[0], config.degrees)


def parallelize(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> ParallelModel:
    """The model, parallelised as configured; needs the joined process group."""
    return STRATEGIES[config.strategy].parallelize(gpt, config, world, layout)
