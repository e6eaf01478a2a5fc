"""What PyTorch's Flight Recorder held of each rank's last collectives."""

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
class FlightRecorderLog:
    """Dumps of some ranks, joined.

    Attributes:
        ranks: ranks with a dump.
        groups: members by name of the group.
        names: what a group is for, by its name.
        phases_at_hang: how far each rank is, by group and rank.
        collectives: the recorded collectives, in the order of the dumps.
    """

    ranks: tuple[int, ...]
    groups: dict[str, tuple[int, ...]]
    names: dict[str, str]
    phases_at_hang: dict[tuple[str, int], PhaseAtHang]
    collectives: tuple[RankCollective, ...]
