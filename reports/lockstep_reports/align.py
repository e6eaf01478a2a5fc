"""Puts the arrivals of ranks of different nodes on one clock, taken from the collectives.

All ranks leave a synchronisation together. Where one node seems to leave it later than the others
in step after step, its clock is ahead by as much. Verdicts do not hang on this: lateness is
counted without any clock. What hangs on it are the times of arrivals in tables.
"""

from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps

_LEAST_THIRD, _LEAST_SECONDS = 30, 60.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Alignment:
    """Arrivals on one clock, and how well that went.

    Attributes:
        offsets: seconds by which the clock of each node is ahead of the ranks' median.
        drifts: seconds that it gains a second; None where the recording is too short to tell.
        residual_seconds: how far apart the ranks still leave a synchronisation, median over the
            steps; None when no step could tell.
        residual_p95_seconds: the same, 95th percentile.
        start: begin of each step on the common clock [ranks x steps].
        last_arrival: last arrival on the common clock [ranks x steps].
    """

    offsets: dict[str, float]
    drifts: dict[str, float | None]
    residual_seconds: float | None
    residual_p95_seconds: float | None
    start: Matrix
    last_arrival: Matrix

    @property
    def lag(self) -> Matrix:
        """Seconds by which each rank arrived after the earliest one [ranks x steps]."""
        return self.last_arrival - nan_stats.lowest(self.last_arrival, axis=0)


def align(steps: Steps) -> Alignment:
    """Removes one clock offset and drift per node; ranks of a node share a clock."""
    end = steps.last_arrival + steps.sync
    middle = nan_stats.median(end, axis=0)
    apart = end - middle
    offsets, drifts, shift = {}, {}, np.zeros((len(steps.members), 1))
    several = len(steps.nodes) > 1
    for node in steps.nodes if several else ():
        rows = steps.on_node(node)
        of_node = nan_stats.median(apart[rows], axis=0)
        drifts[node] = drift_of(middle, of_node)
        offsets[node] = nan_stats.number(nan_stats.median(of_node)) or 0.0
        shift[rows] = offsets[node]
    if any(drifts.values()):
        since = np.nan_to_num(middle - nan_stats.median(middle))
        rates = np.array([drifts[member.node] or 0.0 for member in steps.members])
        shift = shift + rates[:, None] * since
    spread = nan_stats.highest(end - shift, axis=0) - nan_stats.lowest(end - shift, axis=0)
    return Alignment(
        offsets=offsets if several else dict.fromkeys(steps.nodes, 0.0),
        drifts=drifts if several else dict.fromkeys(steps.nodes),
        residual_seconds=nan_stats.number(nan_stats.median(spread)),
        residual_p95_seconds=nan_stats.number(nan_stats.quantile(spread, 0.95)),
        start=steps.start - shift,
        last_arrival=steps.last_arrival - shift,
    )


def drift_of(time: Matrix, apart: Matrix) -> float | None:
    """Seconds that a clock gains a second: medians of the first and the last third; None if short.

    Args:
        time: of each collective, ascending [collectives].
        apart: by how much the clock was ahead there [collectives].

    A drift that the noise of the thirds could make counts as none.
    """
    third = len(time) // 3
    if third < _LEAST_THIRD:
        return None
    first, last = apart[:third], apart[-third:]
    between = nan_stats.number(nan_stats.median(time[-third:]) - nan_stats.median(time[:third]))
    gained = nan_stats.number(nan_stats.median(last) - nan_stats.median(first))
    if between is None or gained is None or between < _LEAST_SECONDS:
        return None
    noise = max(float(nan_stats.median(np.abs(x - nan_stats.median(x)))) for x in (first, last))
    return gained / between if abs(gained) > noise else 0.0
