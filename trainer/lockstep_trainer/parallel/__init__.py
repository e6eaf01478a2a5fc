"""How the work is shared among the ranks: one file and one line here for each strategy."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT
from lockstep_trainer.parallel.ddp import data_parallel
from lockstep_trainer.parallel.experts import expert_parallel
from lockstep_trainer.parallel.fsdp2 import fully_sharded
from lockstep_trainer.parallel.hybrid import hybrid
from lockstep_trainer.parallel.pipeline import pipelined
from lockstep_trainer.parallel.shared import SharedModel
from lockstep_trainer.parallel.tensor import tensor_parallel
from lockstep_trainer.world import World

Share: TypeAlias = Callable[[GPT, TrainConfig, World, Layout], SharedModel]


class Strategy(NamedTuple):
    """One way to share: what does it, and the axes it uses, first the one that fills the world."""

    share: Share
    axes: tuple[str, ...]


STRATEGIES = {
    "ddp": Strategy(data_parallel, ("dp",)),
    "fsdp2": Strategy(fully_sharded, ("fsdp", "dp")),
    "pp": Strategy(pipelined, ("pp",)),
    "tp": Strategy(tensor_parallel, ("tp",)),
    "ep": Strategy(expert_parallel, ("ep", "dp")),
    "hybrid": Strategy(hybrid, ("dp", "fsdp", "pp", "tp")),
}


def layout_of(config: TrainConfig, world_size: int) -> Layout:
    """The layout that a run has in a world.

    Raises:
        ValueError: the strategy is unknown, has no place for an axis, or the degrees do not fit.
    """
    if config.strategy not in STRATEGIES:
        raise ValueError(f"--strategy {config.strategy!r} is none of {', '.join(STRATEGIES)}")
    axes = STRATEGIES[config.strategy].axes
    for axis, degree in config.degrees.items():
        if axis not in axes and degree not in {None, 1}:
            raise ValueError(
                f"--{axis} {degree} has no place in --strategy {config.strategy}, which has "
                f"{' and '.join(axes)}; leave it out or choose another strategy"
            )
    return Layout.fill(world_size, axes[0], config.degrees)


def share(gpt: GPT, config: TrainConfig, world: World, layout: Layout) -> SharedModel:
    """The model, shared as the configuration says; the process group must be joined."""
    return STRATEGIES[config.strategy].share(gpt, config, world, layout)
