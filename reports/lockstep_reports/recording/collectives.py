"""Collectives that several ranks recorded, joined over the ranks."""

from dataclasses import dataclass

from lockstep_reports.arrays import Matrix


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One rank in one collective; ``key`` is the same for all that took part.

    ``start`` and ``end`` are seconds by the rank's own clock; an unknown end is NaN.
    """

    key: tuple[str, int]
    kind: str
    rank: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective over its ranks; None where the clocks are too inexact to order arrivals."""

    kind: str
    start_spread_seconds: float | None
    last_rank: int | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CollectiveLog:
    """Collectives of at least two ranks, in the order of their end.

    Attributes:
        items: the collectives [collectives].
        ranks: global ranks, the rows of the matrices [ranks].
        seconds: from a rank's own start to its end: seconds, [ranks, collectives]; NaN where the
            rank took no part or its end is unknown.
        between: from the previous collective's end to this end: seconds, [ranks, collectives];
            NaN where either is unknown.
        offsets: seconds by which the clock of each rank is ahead; without ranks that have no end.
        drifts: seconds that a clock gains per second, by rank; None where the recording is too
            short to measure it.
        residual: how far apart the ranks still end after alignment: seconds, [collectives].
    """

    items: tuple[Collective, ...]
    ranks: tuple[int, ...]
    seconds: Matrix
    between: Matrix
    offsets: dict[int, float]
    drifts: dict[int, float | None]
    residual: Matrix
