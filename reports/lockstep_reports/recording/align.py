"""Puts the arrivals of ranks of different nodes on one clock, taken from the collectives.

All ranks leave a synchronisation together. Where one node seems to leave it later than the others
in step after step, its clock is ahead by that amount. Verdicts do not depend on this, because
lateness is computed without clocks; the arrival times in tables and figures do.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix, blocks_of_columns, blocks_of_rows
from lockstep_reports.recording.recording import CollectiveLog
from lockstep_reports.recording.steps import Steps

# Below these a median of a third is as noisy as the drift that it is to show: crystal clocks drift
# by tens of microseconds a second at most.
_MIN_STEPS_A_THIRD, _MIN_SECONDS = 30, 60.0
Rows = slice | Integers | list[int]
EVERY = slice(None)


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
        steps: those that are aligned.
        shift: seconds by which the clock of each rank is ahead [ranks, 1 or steps].
    """

    steps: Steps
    shift: Matrix

    def start(self, rows: Rows = EVERY, columns: Rows = EVERY) -> Matrix:
        """Begin of steps on the common clock: seconds since the epoch, [some ranks, some steps]."""
        return self._on_common_clock(self.steps.start, rows, columns)

    def lag(self, columns: slice = EVERY) -> Matrix:
        """How long after the earliest rank each one arrived: seconds, [ranks, some steps]."""
        arrival = self._on_common_clock(self.steps.last_arrival, EVERY, columns)
        arrival -= nan_stats.lowest(arrival, axis=0)
        return arrival

    def measure_span(self) -> tuple[float | None, float | None]:
        """When the first step began and the last ended on the common clock; None where unknown."""
        return self.steps.measure_span(self.shift)

    def _on_common_clock(self, times: Matrix, rows: Rows, columns: Rows) -> Matrix:
        of_each = slice(None) if self.shift.shape[1] == 1 else columns
        return times[rows][:, columns] - self.shift[rows][:, of_each]


def align(steps: Steps) -> Alignment:
    """Removes one clock offset and one drift per node; ranks of a node share a clock."""

    def end(rows: slice | list[int], columns: slice = EVERY) -> Matrix:
        arrival: Matrix = steps.last_arrival[rows, columns]
        return arrival + steps.sync_at(rows, columns)

    blocks = blocks_of_columns(steps.last_arrival)
    medians = [nan_stats.median(end(EVERY, columns), axis=0) for columns in blocks]
    median_end = np.concatenate(medians)
    offsets, drifts, shift = {}, {}, np.zeros((len(steps.members), 1))
    has_nodes, rows_by_node = len(steps.nodes) > 1, steps.rows_by_node
    if has_nodes:
        of_each = (end(rows) - median_end for rows in rows_by_node.values())
        ahead = np.array([nan_stats.median(each, axis=0) for each in of_each])
        drifts = dict(zip(rows_by_node, drifts_of(median_end, ahead), strict=True))
        usually = map(nan_stats.number, nan_stats.median(ahead, axis=1))
        offsets = {node: each or 0.0 for node, each in zip(rows_by_node, usually, strict=True)}
    for node, seconds in offsets.items():
        shift[rows_by_node[node]] = seconds
    if any(drifts.values()):
        since_median_time = np.nan_to_num(median_end - nan_stats.median(median_end))
        rates = np.array([drifts[member.node] or 0.0 for member in steps.members])
        shift = shift + rates[:, None] * since_median_time
    last = first = np.full(len(steps.numbers), np.nan)
    for some in blocks_of_rows(steps.last_arrival):
        aligned = end(some) - shift[some]
        last = np.fmax(last, np.fmax.reduce(aligned))
        first = np.fmin(first, np.fmin.reduce(aligned))
    spread = last - first
    return Alignment(
        offsets=offsets if has_nodes else dict.fromkeys(steps.nodes, 0.0),
        drifts=drifts if has_nodes else dict.fromkeys(steps.nodes),
        residual_seconds=nan_stats.median_number(spread),
        residual_p95_seconds=nan_stats.quantile_number(spread, 0.95),
        steps=steps,
        shift=shift,
    )


def drift_of(time: Matrix, ahead: Matrix) -> float | None:
    """Seconds that a clock gains per second; 0 where noise explains the gain; None if too short.

    Times of collectives are ascending, and by how much the clock is ahead there [collectives].
    """
    return drifts_of(time, ahead[None])[0]


def drifts_of(time: Matrix, ahead: Matrix) -> list[float | None]:
    """The same of some clocks, by how much each is ahead [clocks, collectives]."""
    third = len(time) // 3
    if third < _MIN_STEPS_A_THIRD:
        return [None] * len(ahead)
    parts = ahead[:, :third], ahead[:, -third:]
    between = nan_stats.number(nan_stats.median(time[-third:]) - nan_stats.median(time[:third]))
    medians = [nan_stats.median(part, axis=1) for part in parts]
    gains = (medians[1] - medians[0]).tolist()
    if between is None or between < _MIN_SECONDS:
        return [None] * len(ahead)
    # Null hypothesis: the clock keeps its distance, and the medians of the thirds differ by noise
    # alone. Assumed of the noise: independent from step to step, of any shape. From one median
    # deviation on a gain counts: with 30 normal values a third that happens by chance in one case
    # of 25, and a drift taken for real by mistake is as small as the noise and changes no verdict.
    spreads = [np.abs(x - m[:, None]) for x, m in zip(parts, medians, strict=True)]
    noise = np.maximum(*(nan_stats.median(spread, axis=1) for spread in spreads)).tolist()
    return [
        None if not math.isfinite(gained) else gained / between if abs(gained) > least else 0.0
        for gained, least in zip(gains, noise, strict=True)
    ]


def align_by_collectives(alignment: Alignment, log: CollectiveLog) -> Alignment:
    """The alignment with the clocks of the collectives, by rank."""
    return replace(
        alignment,
        offsets={f"rank {rank}": seconds for rank, seconds in log.offsets.items()},
        drifts={f"rank {rank}": rate for rank, rate in log.drifts.items()},
        residual_seconds=nan_stats.median_number(log.residual) if log.items else None,
        residual_p95_seconds=nan_stats.quantile_number(log.residual, 0.95) if log.items else None,
    )
