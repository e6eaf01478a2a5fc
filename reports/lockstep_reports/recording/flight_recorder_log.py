"""What PyTorch's Flight Recorder held of each rank's last collectives."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCollective:
    """One collective as one rank recorded it; times in nanoseconds by that rank's clock."""

    rank: int
    group: str
    sequence: int
    kind: str
    sizes: str
    created_ns: int | None
    completed_ns: int | None
    completed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseAtHang:
    """How far a rank is in a group: the last collective it entered, and the last it completed."""

    entered: int
    completed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OutstandingOperation:
    """An operation that a rank has entered and not completed.

    Attributes:
        order: position among the rank's operations, by time where that is recorded.
        created_ns: by the rank's clock.
        peers: ranks that a send or receive is with; empty for a collective.
        is_send: whether it sends to them.
        is_point_to_point: whether it is a send or a receive, also where its peers are unknown.
        is_started: whether its kernel runs; None where the recorder was not asked for starts.
    """

    rank: int
    group: str
    sequence: int
    kind: str
    order: int
    created_ns: int | None
    peers: tuple[int, ...]
    is_send: bool
    is_point_to_point: bool
    is_started: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FlightRecorderLog:
    """Dumps of some ranks, joined.

    Attributes:
        ranks: ranks with a dump.
        groups: members by name of the group.
        names: what a group is for, by its name.
        phases_at_hang: how far each rank is, by group and rank.
        collectives: the recorded collectives, in the order of the dumps.
        outstanding: by rank what it has entered and not completed, oldest first.
        overwritten: ranks whose ring no longer holds the oldest of these.
    """

    ranks: tuple[int, ...]
    groups: dict[str, tuple[int, ...]]
    names: dict[str, str]
    phases_at_hang: dict[tuple[str, int], PhaseAtHang]
    collectives: tuple[RankCollective, ...]
    outstanding: dict[int, tuple[OutstandingOperation, ...]]
    overwritten: frozenset[int]

    @property
    def dumped(self) -> Collection[int]:
        """The ranks with a dump, for quick look-ups."""
        return self.outstanding.keys()
