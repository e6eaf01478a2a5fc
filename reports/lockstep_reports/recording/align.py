"""Puts the arrivals of ranks of different nodes on one clock, taken from the collectives.

All ranks leave a synchronisation together. Where one node seems to leave it later than the others
in step after step, its clock is ahead by that amount. Verdicts do not depend on this, because
lateness is computed without clocks; the arrival times in tables and figures do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.recording import CollectiveLog
from lockstep_reports.recording.steps import Steps

# Below these a median of a third is as noisy as the drift that it is to show: crystal clocks drift
# by tens of microseconds a second at most.
_MIN_STEPS_A_THIRD, _MIN_SECONDS = 30, 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """Offsets of the clocks that were corrected, and the error that is left.

    Attributes:
        offsets: seconds by which a clock is ahead of the ranks' median, by node or rank.
        drifts: seconds that it gains per second, in the same way; null where the recording is too
            short to measure it.
        residual_seconds: how far apart the ranks still leave a synchronisation, median over the
            steps; null when no step has two ranks with known ends.
        residual_p95_seconds: the same, 95th percentile.
    """

    offsets: Mapping[str, float]
    drifts: Mapping[str, float | None]
    residual_seconds: float | None
    residual_p95_seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Alignment(Clocks):
    """Arrivals on one clock, and how well the clocks agree afterwards.

    Attributes:
        start: begin of each step on the common clock: seconds since the epoch, [ranks, steps].
        last_arrival: last arrival on the common clock: seconds since the epoch, [ranks, steps].
    """

    start: Matrix
    last_arrival: Matrix

    @property
    def lag(self) -> Matrix:
        """How long after the earliest rank each one arrived: seconds, [ranks, steps]."""
        return self.last_arrival - nan_stats.lowest(self.last_arrival, axis=0)


def align(steps: Steps) -> Alignment:
    """Removes one clock offset and one drift per node; ranks of a node share a clock."""
    end = steps.last_arrival + steps.sync
    median_end = nan_stats.median(end, axis=0)
    ahead = end - median_end
    offsets, drifts, shift = {}, {}, np.zeros((len(steps.members), 1))
    has_nodes = len(steps.nodes) > 1
    for node, rows in steps.rows_by_node.items() if has_nodes else ():
        node_ahead = nan_stats.median(ahead[rows], axis=0)
        drifts[node] = drift_of(median_end, node_ahead)
        offsets[node] = nan_stats.median_number(node_ahead) or 0.0
        shift[rows] = offsets[node]
    if any(drifts.values()):
        since_median_time = np.nan_to_num(median_end - nan_stats.median(median_end))
        rates = np.array([drifts[member.node] or 0.0 for member in steps.members])
        shift = shift + rates[:, None] * since_median_time
    spread = nan_stats.highest(end - shift, axis=0) - nan_stats.lowest(end - shift, axis=0)
    return Alignment(
        offsets=offsets if has_nodes else dict.fromkeys(steps.nodes, 0.0),
        drifts=drifts if has_nodes else dict.fromkeys(steps.nodes),
        residual_seconds=nan_stats.median_number(spread),
        residual_p95_seconds=nan_stats.quantile_number(spread, 0.95),
        start=steps.start - shift,
        last_arrival=steps.last_arrival - shift,
    )


def drift_of(time: Matrix, ahead: Matrix) -> float | None:
    """Seconds that a clock gains per second; 0 where noise explains the gain; None if too short.

    Times of collectives are ascending, and by how much the clock is ahead there [collectives].
    """
    third = len(time) // 3
    if third < _MIN_STEPS_A_THIRD:
        return None
    first, last = ahead[:third], ahead[-third:]
    between = nan_stats.number(nan_stats.median(time[-third:]) - nan_stats.median(time[:third]))
    gained = nan_stats.number(nan_stats.median(last) - nan_stats.median(first))
    if between is None or gained is None or between < _MIN_SECONDS:
        return None
    # Null hypothesis: the clock keeps its distance, and the medians of the thirds differ by noise
    # alone. Assumed of the noise: independent from step to step, of any shape. From one median
    # deviation on a gain counts: with 30 normal values a third that happens by chance in one case
    # of 25, and a drift taken for real by mistake is as small as the noise and changes no verdict.
    noise = max(float(nan_stats.median(np.abs(x - nan_stats.median(x)))) for x in (first, last))
    return gained / between if abs(gained) > noise else 0.0


def align_by_collectives(alignment: Alignment, log: CollectiveLog) -> Alignment:
    """The alignment with the clocks of the collectives, by rank."""
    return replace(
        alignment,
        offsets={f"rank {rank}": seconds for rank, seconds in log.offsets.items()},
        drifts={f"rank {rank}": rate for rank, rate in log.drifts.items()},
        residual_seconds=nan_stats.median_number(log.residual) if log.items else None,
        residual_p95_seconds=nan_stats.quantile_number(log.residual, 0.95) if log.items else None,
    )
