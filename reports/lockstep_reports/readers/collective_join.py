"""Joins the collectives of several ranks: how far apart they began, and which rank came last.

All ranks leave a collective at the same moment. Where one rank seems to leave later by the same
amount each time, its clock is ahead; where the amount grows, the clock drifts. Begins are compared
after both corrections, so no common clock is needed.
"""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.recording.align import drift_of
from lockstep_reports.recording.recording import Collective, CollectiveLog, Span

# Each round removes most of what is left; chains of groups that share few ranks need several.
_MAX_ROUNDS, _CONVERGED_SECONDS = 20, 1e-6


def join(spans: Iterable[Span], end_error_seconds: float = 0.0) -> CollectiveLog:
    """Pairs the spans of all ranks by their key.

    Starts that lie nearer to each other than a recorded end may be wrong get no order.
    """
    by_key: dict[tuple[str, int], dict[int, Span]] = defaultdict(dict)
    for span in spans:
        by_key[span.key][span.rank] = span
    shared = [members for members in by_key.values() if len(members) > 1]
    ranks = tuple(sorted({rank for members in shared for rank in members}))
    start, end = _times(shared, ranks)
    has_end: Flags = ~np.isnan(end)
    by_time = np.argsort(nan_stats.median(np.where(has_end, end, start), axis=0), kind="stable")
    start, end = start[:, by_time], end[:, by_time]
    offset, drift, shift = _clocks(end)
    start, end = start - shift, end - shift
    is_aligned: Flags = np.asarray(has_end.any(axis=1))
    residual = nan_stats.highest(end, axis=0) - nan_stats.lowest(end, axis=0) if ranks else end
    # Where a clock has jumped, even the ends lie apart: starts closer than that have no order.
    end_spread = np.nan_to_num(residual)
    resolution = np.maximum(end_error_seconds, 2 * end_spread)
    kinds = [next(iter(shared[column].values())).kind for column in by_time]
    return CollectiveLog(
        items=tuple(
            _collective(kind, ranks, start[:, column], resolution[column])
            for column, kind in enumerate(kinds)
        ),
        ranks=ranks,
        seconds=end - start,
        between=np.diff(end, axis=1, prepend=np.nan) if shared else end,
        offsets={rank: offset[row] for row, rank in enumerate(ranks) if is_aligned[row]},
        drifts={rank: drift[row] for row, rank in enumerate(ranks) if is_aligned[row]},
        residual=residual,
    )


def _times(shared: list[dict[int, Span]], ranks: tuple[int, ...]) -> tuple[Matrix, Matrix]:
    """Start and end of each rank in each collective: seconds, [ranks, collectives]; NaN absent."""
    row_of = {rank: row for row, rank in enumerate(ranks)}
    start, end = (np.full((len(ranks), len(shared)), np.nan) for _ in range(2))
    for column, members in enumerate(shared):
        for rank, span in members.items():
            start[row_of[rank], column], end[row_of[rank], column] = span.start, span.end
    return start, end


def _clocks(end: Matrix) -> tuple[list[float], list[float | None], Matrix]:
    """By how much each rank's clock is ahead of the others', by its ends [ranks, collectives].

    In seconds [ranks]; seconds gained per second [ranks]; the shift in seconds, as the ends.
    """
    offset, rate = np.zeros(len(end)), np.zeros(len(end))
    drift: list[float | None] = [None] * len(end)
    if not end.size:
        return [], drift, offset[:, None]
    is_known, time = ~np.isnan(end), nan_stats.median(end, axis=0)
    since_median_time = np.nan_to_num(time - nan_stats.median(time))
    shift = np.zeros_like(end)
    # A group of a few ranks shows only how those differ, so corrections are repeated until the
    # groups that share a rank agree.
    for _ in range(_MAX_ROUNDS):
        ahead = end - shift - nan_stats.median(end - shift, axis=0)
        change = np.nan_to_num(nan_stats.median(ahead, axis=1))
        drift = [
            drift_of(time[has_end], ahead[row, has_end]) for row, has_end in enumerate(is_known)
        ]
        offset, rate = offset + change, rate + [gain or 0.0 for gain in drift]
        previous, shift = shift, offset[:, None] + rate[:, None] * since_median_time
        if np.abs(shift - previous).max() < _CONVERGED_SECONDS:
            break
    # The last round decides whether a drift can be measured, the sum of all rounds how large it is.
    total_drift = [
        None if last_gain is None else float(total)
        for last_gain, total in zip(drift, rate, strict=True)
    ]
    return offset.tolist(), total_drift, shift


def _collective(
    kind: str, ranks: tuple[int, ...], start: Matrix, resolution_seconds: float
) -> Collective:
    """One collective from its aligned starts [ranks], ordered if they differ by the resolution."""
    members = np.nonzero(~np.isnan(start))[0]
    spread = float(np.nanmax(start) - np.nanmin(start))
    is_ordered = spread >= resolution_seconds
    return Collective(
        kind=kind,
        start_spread_seconds=spread if is_ordered else None,
        last_rank=ranks[int(np.nanargmax(start))] if is_ordered else None,
        ranks=tuple(ranks[row] for row in members),
    )
