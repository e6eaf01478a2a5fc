"""Entries of one rank's Flight Recorder dump: its collectives, and what it has not completed."""

import re
from typing import Any

from lockstep_records.shared.printable import printable
from lockstep_reports.recording.collectives import OutstandingOperation, RankCollective

_KINDS = {
    "allreduce": "all_reduce",
    "allgatherbase": "all_gather",
    "allgather": "all_gather",
    "reducescatterbase": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "broadcast": "broadcast",
}
# Both ranks number a group's members from 0: "nccl:send 0->1", "nccl:recv 1<-0".
_POINT_TO_POINT = re.compile(
    r"(?P<kind>send|recv)\s+(?P<own>\d{1,7})\s*(?:->|<-)\s*(?P<peer>\d{1,7})"
)


def group_of(entry: dict[str, Any]) -> str:
    """Name of the entry's group; empty where it has none."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple):
        return str(group[0]) if group else ""
    return str(group) if group else ""


def collective_of(rank: int, entry: dict[str, Any]) -> RankCollective | None:
    """A rank's entry of a collective; None for sends and receives, and for entries of no group."""
    group, sequence = entry.get("process_group"), entry.get("collective_seq_id")
    if entry.get("is_p2p") or not isinstance(sequence, int) or not group:
        return None
    completed = entry.get("time_discovered_completed_ns")
    created = entry.get("time_created_ns")
    return RankCollective(
        rank=rank,
        group=group_of(entry),
        sequence=sequence,
        kind=_kind(entry),
        sizes=str(entry.get("input_sizes"))[:200],
        created_ns=created if isinstance(created, int) else None,
        completed_ns=completed if isinstance(completed, int) else None,
        completed=_is_completed(entry),
    )


def outstanding_operations(
    rank: int, entries: list[dict[str, Any]], groups: dict[str, tuple[int, ...]]
) -> tuple[OutstandingOperation, ...]:
    """What a rank has entered and not completed, oldest first.

    Args:
        rank: whose entries they are.
        entries: of its dump, in any order.
        groups: members by name of the group, which peers are numbered by.
    """
    operations = [
        operation
        for index, entry in enumerate(entries)
        if (operation := _outstanding(rank, index, entry, groups)) is not None
    ]
    # The dump is a ring, so that its order is none; clocks and numbers of records are.
    return tuple(sorted(operations, key=lambda each: (each.created_ns or 0, each.order)))


def _outstanding(
    rank: int, index: int, entry: dict[str, Any], groups: dict[str, tuple[int, ...]]
) -> OutstandingOperation | None:
    group, sequence = group_of(entry), entry.get("collective_seq_id")
    if not group or not isinstance(sequence, int) or _is_completed(entry):
        return None
    match = _POINT_TO_POINT.search(str(entry.get("profiling_name", "")))
    peers = () if match is None else _peers(rank, match, groups.get(group, ()))
    record, created = entry.get("record_id"), entry.get("time_created_ns")
    return OutstandingOperation(
        rank=rank,
        group=group,
        sequence=sequence,
        kind=match["kind"] if match is not None else _kind(entry),
        order=record if isinstance(record, int) else index,
        created_ns=created if isinstance(created, int) else None,
        peers=peers,
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
    return _KINDS.get(re.sub(r"[^a-z]", "", operation.lower()), printable(operation)[:64])


def _is_completed(entry: dict[str, Any]) -> bool:
    # On gloo the state of a completed collective stays "scheduled".
    return entry.get("state") == "completed" or bool(entry.get("retired"))


def _is_started(entry: dict[str, Any]) -> bool | None:
    if entry.get("state") == "started" or isinstance(entry.get("time_discovered_started_ns"), int):
        return True
    return False if entry.get("state") == "scheduled" else None
