"""One step of one replica, whose recorded order is taken for all replicas and steps."""

from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Integers, Seconds
from lockstep_reports.whatif.grid import Grid


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReferenceStep:
    """Times of one replica's step.

    Attributes:
        in_order: all operations by (start, order, name of the type) [operations].
        start: seconds from the step's begin [operations].
        end: seconds from the step's begin [operations].
    """

    grid: Grid
    in_order: Integers
    start: Seconds
    end: Seconds

    def ops(self, stage: int, shard: int, *names: str) -> Integers:
        """Operations of some types on one rank, in recorded order."""
        on_rank = (self.grid.stage == stage) & (self.grid.shard == shard)
        selected: Integers = self.in_order[(on_rank & self.grid.select_type(*names))[self.in_order]]
        return selected


def reference_step(grid: Grid, replica: int, step: int) -> ReferenceStep:
    """The step of one replica; both are indices into the grid."""
    start, end = grid.start[:, replica, step], grid.end[:, replica, step]
    by_name = np.argsort(np.argsort(grid.types))[grid.type_of]
    in_order = np.lexsort((by_name, grid.order, start))
    return ReferenceStep(grid=grid, in_order=in_order, start=start, end=end)
