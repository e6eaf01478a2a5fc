"""Puts the arrivals of ranks of different nodes on one clock, taken from the collectives.

All ranks leave a synchronisation together. Where one node seems to leave it later than the others
in step after step, its clock is ahead by as much. Verdicts do not hang on this: lateness is
counted without any clock. What hangs on it are the times of arrivals in tables.
"""

from dataclasses import dataclass

import numpy as np

from lockstep_reports import known
from lockstep_reports.steps import Matrix, Steps


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Alignment:
    """Arrivals on one clock, and how well that went.

    Attributes:
        offsets: seconds by which the clock of each node is ahead of the ranks' median.
        residual_seconds: how far apart the ranks still leave a synchronisation, median over the
            steps; None when no step could tell.
        residual_p95_seconds: the same, 95th percentile.
        start: begin of each step on the common clock [ranks x steps].
        last_arrival: last arrival on the common clock [ranks x steps].
    """

    offsets: dict[str, float]
    residual_seconds: float | None
    residual_p95_seconds: float | None
    start: Matrix
    last_arrival: Matrix

    @property
    def lag(self) -> Matrix:
        """Seconds by which each rank arrived after the earliest one [ranks x steps]."""
        return self.last_arrival - known.lowest(self.last_arrival, axis=0)


def align(steps: Steps) -> Alignment:
    """Removes one clock offset per node; ranks of a node share a clock."""
    end = steps.last_arrival + steps.sync
    apart = end - known.median(end, axis=0)
    offsets, shift = {}, np.zeros((len(steps.members), 1))
    for node in steps.nodes:
        rows = steps.on_node(node)
        offset = known.number(known.median(apart[rows])) if len(steps.nodes) > 1 else None
        offsets[node] = offset or 0.0
        shift[rows] = offsets[node]
    spread = known.highest(end - shift, axis=0) - known.lowest(end - shift, axis=0)
    return Alignment(
        offsets=offsets,
        residual_seconds=known.number(known.median(spread)),
        residual_p95_seconds=known.number(known.quantile(spread, 0.95)),
        start=steps.start - shift,
        last_arrival=steps.last_arrival - shift,
    )
