"""Collectives that several ranks recorded: how far apart they began, and who was last.

Ranks leave a collective together, so where one seems to leave later by as much each time, its
clock is ahead; begins are compared after that is set right.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lockstep_reports import known
from lockstep_reports.steps import Matrix


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
        offsets: seconds by which the clock of each rank is ahead, by rank.
        residual: how far apart the ranks still end [collectives].
    """

    items: tuple[Collective, ...]
    ranks: tuple[int, ...]
    seconds: Matrix
    between: Matrix
    offsets: dict[int, float]
    residual: Matrix


def join(spans: Iterable[Span]) -> CollectiveLog:
    """Pairs the spans of all ranks by their key."""
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
    offset = _offsets(end)
    order = np.argsort(known.median(end - offset, axis=0), kind="stable")
    start, end = start[:, order] - offset, end[:, order] - offset
    kinds = [next(iter(shared[at].values())).kind for at in order]
    return CollectiveLog(
        items=tuple(
            _collective(kind, ranks, start[:, column]) for column, kind in enumerate(kinds)
        ),
        ranks=ranks,
        seconds=end - start,
        between=np.diff(end, axis=1, prepend=np.nan) if shared else end,
        offsets=dict(zip(ranks, offset[:, 0].tolist(), strict=True)),
        residual=known.highest(end, axis=0) - known.lowest(end, axis=0) if ranks else end,
    )


def _offsets(end: Matrix) -> Matrix:
    """By how much each rank's clock is ahead of the ranks' median [ranks x 1]."""
    if not end.size:
        return np.zeros((len(end), 1))
    apart = known.median(end - known.median(end, axis=0), axis=1)
    return np.nan_to_num(apart)[:, None]


def _collective(kind: str, ranks: tuple[int, ...], start: Matrix) -> Collective:
    there = np.nonzero(~np.isnan(start))[0]
    last = int(np.nanargmax(start))
    return Collective(
        kind=kind,
        start_spread_seconds=float(np.nanmax(start) - np.nanmin(start)),
        last_rank=ranks[last],
        ranks=tuple(ranks[at] for at in there),
    )
