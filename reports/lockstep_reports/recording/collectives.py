"""Collectives that several ranks recorded: how far apart they began, and who was last.

Ranks leave a collective together, so where one seems to leave later by as much each time, its
clock is ahead, and where that grows, it drifts; begins are compared after both are set right.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.align import drift_of
from lockstep_reports.recording.steps import Matrix

_MOST_ROUNDS, _AGREED_SECONDS = 20, 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One rank in one collective; ``key`` is the same for all that took part. Seconds."""

    key: tuple[str, int]
    kind: str
    rank: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective over its ranks; None where clocks cannot tell."""

    kind: str
    start_spread_seconds: float | None
    last_rank: int | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CollectiveLog:
    """Collectives of at least two ranks, in the order of their end.

    Attributes:
        ranks: rows of the matrices.
        seconds: from own begin to end of each rank [ranks x collectives]; NaN where absent.
        between: from the end of the one before to this end [ranks x collectives].
        offsets: seconds by which the clock of each rank is ahead; ranks without an end left out.
        drifts: seconds that it gains a second; None where the recording is too short to tell.
        residual: how far apart the ranks still end [collectives].
    """

    items: tuple[Collective, ...]
    ranks: tuple[int, ...]
    seconds: Matrix
    between: Matrix
    offsets: dict[int, float]
    drifts: dict[int, float | None]
    residual: Matrix


def join(spans: Iterable[Span], blur_seconds: float = 0.0) -> CollectiveLog:
    """Pairs the spans of all ranks by their key.

    Args:
        spans: of all ranks; an end that nobody told is NaN.
        blur_seconds: how wrong an end may be told; begins that lie nearer have no order.
    """
    by_key: dict[tuple[str, int], dict[int, Span]] = defaultdict(dict)
    for span in spans:
        by_key[span.key][span.rank] = span
    shared = [members for members in by_key.values() if len(members) > 1]
    ranks = tuple(sorted({rank for members in shared for rank in members}))
    row = {rank: at for at, rank in enumerate(ranks)}
    start, end = (np.full((len(ranks), len(shared)), np.nan) for _ in range(2))
    for column, members in enumerate(shared):
        for rank, span in members.items():
            start[row[rank], column], end[row[rank], column] = span.start, span.end
    told = ~np.isnan(end)
    by_time = np.argsort(nan_stats.median(np.where(told, end, start), axis=0), kind="stable")
    start, end = start[:, by_time], end[:, by_time]
    clocks = _clocks(end)
    start, end = start - clocks.shift, end - clocks.shift
    aligned = told.any(axis=1)
    residual = nan_stats.highest(end, axis=0) - nan_stats.lowest(end, axis=0) if ranks else end
    gaps = np.nan_to_num(residual)  # where a clock has jumped, not even ends are together
    kinds = [next(iter(shared[at].values())).kind for at in by_time]
    return CollectiveLog(
        items=tuple(
            _collective(kind, ranks, start[:, column], max(blur_seconds, 2 * gaps[column]))
            for column, kind in enumerate(kinds)
        ),
        ranks=ranks,
        seconds=end - start,
        between=np.diff(end, axis=1, prepend=np.nan) if shared else end,
        offsets={rank: clocks.offset[at] for at, rank in enumerate(ranks) if aligned[at]},
        drifts={rank: clocks.drift[at] for at, rank in enumerate(ranks) if aligned[at]},
        residual=residual,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Clocks:
    offset: list[float]
    drift: list[float | None]
    shift: Matrix


def _clocks(end: Matrix) -> _Clocks:
    """By how much each rank's clock is ahead of the others', at each collective.

    Groups of a few ranks tell only how those differ, so what is told goes round until all agree.
    """
    offset, rate = np.zeros(len(end)), np.zeros(len(end))
    drift: list[float | None] = [None] * len(end)
    if not end.size:
        return _Clocks(offset=[], drift=drift, shift=offset[:, None])
    there, time = ~np.isnan(end), nan_stats.median(end, axis=0)
    since = np.nan_to_num(time - nan_stats.median(time))
    shift = np.zeros_like(end)
    for _ in range(_MOST_ROUNDS):
        apart = end - shift - nan_stats.median(end - shift, axis=0)
        change = np.nan_to_num(nan_stats.median(apart, axis=1))
        drift = [drift_of(time[row], apart[at, row]) for at, row in enumerate(there)]
        offset, rate = offset + change, rate + [more or 0.0 for more in drift]
        before, shift = shift, offset[:, None] + rate[:, None] * since
        if np.abs(shift - before).max() < _AGREED_SECONDS:
            break
    told = [
        None if more is None else float(all_of_it)
        for more, all_of_it in zip(drift, rate, strict=True)
    ]
    return _Clocks(offset=offset.tolist(), drift=told, shift=shift)


def _collective(
    kind: str, ranks: tuple[int, ...], start: Matrix, blur_seconds: float
) -> Collective:
    there = np.nonzero(~np.isnan(start))[0]
    spread = float(np.nanmax(start) - np.nanmin(start))
    told = spread >= blur_seconds
    return Collective(
        kind=kind,
        start_spread_seconds=spread if told else None,
        last_rank=ranks[int(np.nanargmax(start))] if told else None,
        ranks=tuple(ranks[at] for at in there),
    )
