"""Which rank a line of a log belongs to, and how many ranks there are."""

from collections.abc import Callable
from typing import TypeVar

from lockstep_outcomes.joblogs.model import Finding
from lockstep_outcomes.joblogs.reading.prefix import Origin
from lockstep_outcomes.joblogs.reading.progress import Milestones
from lockstep_outcomes.joblogs.reading.scan import Scan

T = TypeVar("T")
# Kinds of lines in which Slurm names tasks.
_BY_TASK = frozenset({"srun_exit", "host_oom"})


class RankResolver:
    """Which rank an origin is.

    A task is a rank under srun alone, and a node where torchrun's own labels follow it; then only
    those count. A rank on its node is the global rank where the log shows that there is only one
    node: it says so, or the ranks on a node are as many as all ranks.
    """

    def __init__(self, files: list[Scan]) -> None:
        self._files = files
        origins = {origin for file in files for origin in file.origins}
        ranked = [origin for origin in origins if origin.rank is not None]
        below = any(origin.task is not None and origin.task != origin.rank for origin in ranked)
        locals_only = any(origin.local_rank is not None for origin in origins)
        self.tasks_are_ranks = not below and not locals_only
        nodes = {origin.task for origin in origins if origin.local_rank is not None}
        locals_seen = [o.local_rank for o in origins if o.local_rank is not None]
        fills_world = 0 < _stated_world(files) <= max(locals_seen, default=-1) + 1
        self._is_one_node = len(nodes) <= 1 and (_num_nodes(files) == 1 or fills_world)

    def resolve(self, origin: Origin, rank_of_file: int | None) -> tuple[int, ...]:
        """The rank as a tuple of one; empty where neither origin nor file names it."""
        if origin.rank is not None:
            return (origin.rank,)
        if self.tasks_are_ranks and origin.task is not None:
            return (origin.task,)
        if self._is_one_node and origin.local_rank is not None:
            return (origin.local_rank,)
        return () if rank_of_file is None else (rank_of_file,)

    def group_by_rank(self, pick: Callable[[Milestones], dict[Origin, T]]) -> dict[int, T]:
        """A milestone of each origin by its rank; the first one of a rank counts."""
        gathered: dict[int, T] = {}
        for file in self._files:
            for origin, value in pick(file.milestones).items():
                for rank in self.resolve(origin, file.rank):
                    gathered.setdefault(rank, value)
        return gathered


def world_size(files: list[Scan], findings: tuple[Finding, ...], ranks: RankResolver) -> int:
    """The number of ranks as logged, or as many as printed, initialised or ended; 0 if none."""
    exits = {rank for f in findings if f.kind == "summary_exit" for rank in f.ranks}
    if ranks.tasks_are_ranks:
        exits |= {rank for f in findings if f.kind in _BY_TASK for rank in f.ranks}
    # One rank alone is the one that prints for all of them.
    seen = _ranks_seen(files, ranks) | exits
    return max(_stated_world(files), max(seen) + 1 if len(seen) > 1 else 0)


def _ranks_seen(files: list[Scan], ranks: RankResolver) -> set[int]:
    """Ranks that wrote a line, or that a file is named after."""
    writers = {
        rank
        for file in files
        for origin in file.origins
        for rank in ranks.resolve(origin, file.rank)
    }
    return writers | {file.rank for file in files if file.rank is not None}


def _stated_world(files: list[Scan]) -> int:
    """The number of ranks as stated or as many as initialised; 0 where neither is logged."""
    sizes = [file.milestones.world for file in files]
    inits = sum(file.milestones.num_inits for file in files)
    return max([*sizes, inits if inits > 1 else 0])


def _num_nodes(files: list[Scan]) -> int | None:
    stated = [file.milestones.num_nodes for file in files]
    return max((nodes for nodes in stated if nodes is not None), default=None)
