"""Rank and world size: by the initialised process group, else by the variables of a launcher."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lockstep.identity.requeues import read_integer


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPosition:
    """Where a rank stands in its job, and what launched it; empty where nobody has."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    launcher: str = ""


class _Launcher(NamedTuple):
    """The variables in which a launcher says where a rank stands."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    requires: str = ""


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    # Only srun sets the step: a batch script has a rank too, and is none.
    _Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID"),
    *(
        _Launcher(name, f"{prefix}_RANK", f"{prefix}_SIZE", f"{prefix}_LOCAL_RANK")
        for name, prefix in (("Open MPI", "OMPI_COMM_WORLD"), ("MVAPICH", "MV2_COMM_WORLD"))
    ),
    _Launcher("MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
# Where one of these stands alone, others run too, and only the process group will say which is who.
_LAUNCHER_SIGNS = ("LOCAL_RANK", "MASTER_ADDR", "PMIX_RANK")
_LIGHTNING = ("NODE_RANK", "LOCAL_RANK")


def is_group_ready() -> bool:
    """Whether torch's process group is initialised; loads nothing."""
    distributed = sys.modules.get("torch.distributed")
    is_available: Callable[[], bool] | None = getattr(distributed, "is_available", None)
    if distributed is None or is_available is None or not is_available():
        return False
    return bool(distributed.is_initialized())


def find_position(environment: Mapping[str, str] = os.environ) -> RankPosition | None:
    """The position of this rank, None while only a group to come can say it; or ValueError."""
    # An environment that somebody hands in describes another process.
    if environment is os.environ and is_group_ready():
        return _position_in_group(environment)
    for launcher in _LAUNCHERS:
        if launcher.rank in environment and launcher.world_size in environment:
            if launcher.requires and launcher.requires not in environment:
                continue
            return _position_by(launcher, environment)
    # As ever, RANK alone is a rank of torchrun's whose world nobody has told.
    if "RANK" in environment:
        return _position_by(_LAUNCHERS[0], environment)
    if read_integer(environment, "WORLD_SIZE", 1) > 1:
        return None
    return None if any(name in environment for name in _LAUNCHER_SIGNS) else RankPosition()


def _position_in_group(environment: Mapping[str, str]) -> RankPosition:
    distributed = sys.modules["torch.distributed"]
    rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
    local_ranks = (environment.get(launcher.local_rank, "") for launcher in _LAUNCHERS)
    found = next((text for text in local_ranks if text.isdigit()), None)
    return RankPosition(
        rank=rank,
        world_size=world_size,
        # Ranks that no launcher has numbered are those of one node.
        local_rank=rank if found is None else int(found),
        launcher=_launcher_name(environment) or ("torch" if world_size > 1 else ""),
    )


def _launcher_name(environment: Mapping[str, str]) -> str:
    names = (
        launcher.name
        for launcher in _LAUNCHERS
        if launcher.rank in environment and (launcher.requires or launcher.rank) in environment
    )
    return next(names, "")


def _position_by(launcher: _Launcher, environment: Mapping[str, str]) -> RankPosition:
    return RankPosition(
        rank=read_integer(environment, launcher.rank, 0),
        world_size=read_integer(environment, launcher.world_size, 1),
        local_rank=read_integer(environment, launcher.local_rank, 0),
        launcher=launcher.name,
    )


def launching_pid(environment: Mapping[str, str], position: RankPosition) -> int:
    """Process that started all ranks of this node, by which they know each other."""
    if not position.launcher:
        return os.getpid()
    # Lightning's first rank starts the others itself.
    is_lightning = "RANK" not in environment and all(name in environment for name in _LIGHTNING)
    is_own = is_lightning and environment["LOCAL_RANK"] == "0"
    # The first process of a container has a parent outside, whose number is 0 here.
    return os.getpid() if is_own else os.getppid() or os.getpid()
