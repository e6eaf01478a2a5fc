"""One replica's one step: the order in which its operations were recorded."""

from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Integers, Seconds
from lockstep_reports.whatif.grid import Grid


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lane:
    """Times of one replica's step, which stand for all: every step waits in the same way.

    Attributes:
        ordered: all operations by (start, order, name of the type).
        start: seconds [operations]; ``end`` likewise.
    """

    grid: Grid
    ordered: Integers
    start: Seconds
    end: Seconds

    def ops(self, stage: int, shard: int, *names: str) -> Integers:
        """Operations of some types on one rank, as recorded in time."""
        here = (self.grid.stage == stage) & (self.grid.shard == shard)
        chosen: Integers = self.ordered[(here & self.grid.of_type(*names))[self.ordered]]
        return chosen


def lane_of(grid: Grid, replica: int, step: int) -> Lane:
    """The lane of one replica and step, by place."""
    start, end = grid.start[:, replica, step], grid.end[:, replica, step]
    by_name = np.argsort(np.argsort(grid.types))[grid.type_of]
    return Lane(grid=grid, ordered=np.lexsort((by_name, grid.order, start)), start=start, end=end)
