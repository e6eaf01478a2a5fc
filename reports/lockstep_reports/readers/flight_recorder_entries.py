"""Operations of one rank's Flight Recorder dump."""

import re
from dataclasses import dataclass
from typing import Any

from lockstep_records.shared.printable import printable
from lockstep_reports.recording.collectives import RankOperation, collective_kind

# Both ranks number a group's members from 0: "nccl:send 0->1", "nccl:recv 1<-0".
_POINT_TO_POINT = re.compile(
    r"(?P<kind>send|recv)\s+(?P<own>\d{1,7})\s*(?:->|<-)\s*(?P<peer>\d{1,7})"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDump:
    """The dump of one rank: its groups, the counters by number of the group, and its entries."""

    rank: int
    config: dict[str, Any]
    status: dict[str, Any]
    entries: list[dict[str, Any]]


def group_of(entry: dict[str, Any]) -> str:
    """Name of the entry's group; empty where it has none."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple):
        return str(group[0]) if group else ""
    return str(group) if group else ""


def operations_of(dump: RankDump, groups: dict[str, tuple[int, ...]]) -> tuple[RankOperation, ...]:
    """A rank's operations that name their group, in the order of its dump."""
    found = (_operation(dump.rank, *entry, groups) for entry in enumerate(dump.entries))
    return tuple(operation for operation in found if operation is not None)


def _operation(
    rank: int, index: int, entry: dict[str, Any], groups: dict[str, tuple[int, ...]]
) -> RankOperation | None:
    """An entry's operation; ``groups`` are the members that peers are numbered by."""
    group, sequence = group_of(entry), entry.get("collective_seq_id")
    if not group or not isinstance(sequence, int):
        return None
    match = _POINT_TO_POINT.search(str(entry.get("profiling_name", "")))
    record, created, completed = (
        value if isinstance(value := entry.get(name), int) else None
        for name in ("record_id", "time_created_ns", "time_discovered_completed_ns")
    )
    return RankOperation(
        rank=rank,
        group=group,
        sequence=sequence,
        kind=_kind(entry) if match is None else match["kind"],
        order=index if record is None else record,
        created_ns=created,
        completed_ns=completed,
        # On gloo the state of a completed collective stays "scheduled".
        is_completed=entry.get("state") == "completed" or bool(entry.get("retired")),
        peers=() if match is None else _peers(rank, match, groups.get(group, ())),
        is_send=match is not None and match["kind"] == "send",
        is_point_to_point=match is not None or bool(entry.get("is_p2p")),
        is_started=_is_started(entry),
    )


def _peers(rank: int, match: re.Match[str], members: tuple[int, ...]) -> tuple[int, ...]:
    """The peer's rank; none where the members' order is another than that of their numbers."""
    own, peer = int(match["own"]), int(match["peer"])
    if max(own, peer) < len(members) and members[own] == rank:
        return (members[peer],)
    others = tuple(member for member in members if member != rank)
    return others if len(others) == 1 else ()


def _kind(entry: dict[str, Any]) -> str:
    operation = str(entry.get("profiling_name", "")).rpartition(":")[2]
    return collective_kind(operation) or printable(operation)[:64]


def _is_started(entry: dict[str, Any]) -> bool | None:
    if entry.get("state") == "started" or isinstance(entry.get("time_discovered_started_ns"), int):
        return True
    return False if entry.get("state") == "scheduled" else None
