"""Reads Flight Recorder dumps of several ranks, pickled or as JSON, and joins them."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_records.file_access.compressed import read_content
from lockstep_records.text.printable import printable
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.collective_join import join
from lockstep_reports.readers.files import files_of, head, holds_any
from lockstep_reports.readers.unpickled import json_values, plain_values
from lockstep_reports.recording.recording import (
    FlightRecorderLog,
    PhaseAtHang,
    RankOperation,
    Recording,
    Span,
    collective_kind,
)
from lockstep_reports.recording.steps import timed_steps

# Both ranks number a group's members from 0: "nccl:send 0->1", "nccl:recv 1<-0".
_POINT_TO_POINT = re.compile(
    r"(?P<kind>send|recv)\s+(?P<own>\d{1,7})\s*(?:->|<-)\s*(?P<peer>\d{1,7})"
)
_PIPELINE = re.compile(r"(?i)pipe|\bpp\b|_pp_|p2p")


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


def members_of(group: Any) -> tuple[int, ...]:
    """Ranks of a group by its configuration; empty where it lists none."""
    ranks = group.get("ranks") if isinstance(group, dict) else None
    if isinstance(ranks, str):
        return tuple(int(number) for number in re.findall(r"\d{1,7}", ranks))
    if isinstance(ranks, list):
        return tuple(rank for rank in ranks if isinstance(rank, int) and rank >= 0)
    return ()


def join_dumps(dumps: dict[int, RankDump]) -> FlightRecorderLog:
    """The dumps by rank as one log."""
    config = [pair for dump in dumps.values() for pair in dump.config.items()]
    groups = {name: members_of(group) for name, group in config}
    seen: dict[str, set[int]] = {}
    for dump in dumps.values():
        for entry in dump.entries:
            group, sequence = group_of(entry), entry.get("collective_seq_id")
            if group and isinstance(sequence, int) and not entry.get("is_p2p"):
                seen.setdefault(group, set()).add(dump.rank)
    # Where a group's members are not listed, those that have entered a collective of it.
    groups |= {name: tuple(sorted(ranks)) for name, ranks in seen.items() if not groups.get(name)}
    operations = {rank: operations_of(dump, groups) for rank, dump in dumps.items()}
    collectives = tuple(
        each for own in operations.values() for each in own if not each.is_point_to_point
    )
    # The dump is a ring, so that its order is none; clocks and numbers of records are.
    outstanding = {
        rank: tuple(sorted((o for o in own if not o.is_completed), key=_recorded_at))
        for rank, own in operations.items()
    }
    return FlightRecorderLog(
        ranks=tuple(sorted(dumps)),
        groups=groups,
        names={
            name: printable(str(group.get("desc") or ""))
            for name, group in config
            if isinstance(group, dict)
        },
        phases_at_hang=_phases_at_hang(dumps, groups, collectives),
        collectives=collectives,
        outstanding=outstanding,
        overwritten=frozenset(
            rank for rank, dump in dumps.items() if _is_overwritten(dump, len(outstanding[rank]))
        ),
    )


def _recorded_at(operation: RankOperation) -> tuple[int, int]:
    return operation.created_ns or 0, operation.order


def _is_overwritten(dump: RankDump, num_outstanding: int) -> bool:
    """Whether the ring has lost operations that are still outstanding.

    The counters say how many there are; without counters, a ring that begins with an outstanding
    operation, and not with the rank's first one, may have lost older ones.
    """
    counted = [
        entered - completed
        for counters in dump.status.values()
        if isinstance(counters, dict)
        and isinstance(entered := counters.get("last_enqueued_collective"), int)
        and isinstance(completed := counters.get("last_completed_collective"), int)
    ]
    if counted:
        return sum(max(0, each) for each in counted) > num_outstanding
    records = [e["record_id"] for e in dump.entries if isinstance(e.get("record_id"), int)]
    return num_outstanding == len(dump.entries) > 0 and min(records, default=0) > 0


def _phases_at_hang(
    dumps: dict[int, RankDump],
    groups: dict[str, tuple[int, ...]],
    collectives: tuple[RankOperation, ...],
) -> dict[tuple[str, int], PhaseAtHang]:
    """By a rank's counters where it keeps them, else by its entries; keys are group and rank."""
    phases: dict[tuple[str, int], PhaseAtHang] = {}
    for collective in collectives:
        key, sequence = (collective.group, collective.rank), collective.sequence
        previous = phases.get(key, PhaseAtHang(entered=sequence, completed=sequence - 1))
        completed = sequence if collective.is_completed else previous.completed
        phases[key] = PhaseAtHang(
            entered=max(previous.entered, sequence), completed=max(previous.completed, completed)
        )
    # Each rank numbers its groups itself; only entries show which number a group has.
    numbers: dict[tuple[str, int], str] = {}
    for dump in dumps.values():
        for entry in dump.entries:
            group, number = entry.get("process_group"), entry.get("pg_id")
            if isinstance(group, list | tuple) and group and isinstance(number, int):
                numbers[str(group[0]), dump.rank] = str(number)
    mixed = _mixed_groups(dumps)
    for name, members in groups.items():
        for rank in members if name not in mixed else ():
            number = numbers.get((name, rank)) or _fellow_number(dumps, numbers, name, rank)
            phase = _counted_phase(dumps.get(rank), number)
            if phase is not None:
                phases[name, rank] = phase
    return phases


def _mixed_groups(dumps: dict[int, RankDump]) -> set[str]:
    """Groups with sends and receives: there the counters are each rank's own and compare nothing.

    The counters count operations, of which a send and its receive are one on each rank that takes
    part; only the sequence of collectives is the same on all members.
    """
    mixed = set()
    for dump in dumps.values():
        for entry in dump.entries:
            sequence, operation = entry.get("collective_seq_id"), entry.get("op_id")
            if entry.get("is_p2p") or (isinstance(operation, int) and operation != sequence):
                mixed.add(group_of(entry))
        mixed |= {
            name
            for name, group in dump.config.items()
            if isinstance(group, dict) and _PIPELINE.search(str(group.get("desc") or ""))
        }
    return mixed


def _fellow_number(
    dumps: dict[int, RankDump], numbers: dict[tuple[str, int], str], name: str, rank: int
) -> str | None:
    """The number of a group on a rank without entries, by fellow members with the same groups."""
    own = dumps.get(rank)
    used = {
        number
        for (group, member), number in numbers.items()
        if group == name and own and dumps[member].status.keys() == own.status.keys()
    }
    return used.pop() if len(used) == 1 else None


def _counted_phase(dump: RankDump | None, number: str | None) -> PhaseAtHang | None:
    counters = dump.status.get(number or "") if dump is not None else None
    if not isinstance(counters, dict):
        return None
    entered, completed = (
        counters.get(f"last_{name}_collective") for name in ("enqueued", "completed")
    )
    if not isinstance(entered, int) or not isinstance(completed, int) or entered < 0:
        return None
    return PhaseAtHang(entered=entered, completed=completed)


_MAX_BYTES = 1 << 26
_MAX_ENTRIES, _MAX_ALL_ENTRIES = 1 << 18, 1 << 22
# The recorder's watchdog polls for completed work every 100 ms, and clocks of synchronised hosts
# hardly ever differ by more; starts that lie nearer together have no order.
_END_ERROR_SECONDS = 0.1
_PICKLE = b"\x80"
_DUMP_KEYS = (b"pg_config", b"pg_status", b"collective_seq_id")


def recognises(path: Path) -> bool:
    """Whether it is a dump, or a folder with some."""
    return holds_any(path, _is_dump)


def _is_dump(path: Path) -> bool:
    begin = head(path)
    if begin[:1] != _PICKLE and begin.lstrip()[:1] != b"{":
        return False
    # A profiler trace names process groups too, so its own key rules it out.
    return b"traceEvents" not in begin and any(key in begin for key in _DUMP_KEYS)


def read(path: Path, options: ReadOptions) -> Recording:
    """The dumps as a recording without steps; raises as ``ReaderModule.read``."""
    del options
    dumps, notes = _dumps_in(path)
    if not dumps:
        raise ValueError(f"no dump in {path} can be read: {notes[0] if notes else 'there is none'}")
    log = join_dumps(dumps)
    collectives = join(_spans(log), _END_ERROR_SECONDS)
    if any(item.last_rank is None for item in collectives.items):
        notes.append(
            f"Arrivals less than {_END_ERROR_SECONDS:g} s apart have no order: clocks are not told "
            "more exactly by dumps."
        )
    world = 1 + max({*dumps, *(rank for members in log.groups.values() for rank in members)})
    numbers, seconds = np.array([], dtype=np.int64), np.empty((len(dumps), 0))
    return Recording(
        source_kind="flight_recorder",
        path=path,
        steps=timed_steps(
            path.name, sorted(dumps), numbers, seconds, world_size=world, notes=tuple(notes)
        ),
        flight_recorder_log=log,
        collectives=collectives if collectives.items else None,
    )


def _spans(log: FlightRecorderLog) -> Iterator[Span]:
    """Collectives from the moment a rank enqueued them to when its recorder saw them completed."""
    for entry in log.collectives:
        if entry.created_ns is not None:
            completed_ns = entry.completed_ns
            yield Span(
                key=(entry.group, entry.sequence),
                kind=entry.kind,
                rank=entry.rank,
                start=entry.created_ns / 1e9,
                end=math.nan if completed_ns is None else completed_ns / 1e9,
            )


def _dumps_in(path: Path) -> tuple[dict[int, RankDump], list[str]]:
    """The dumps by rank, and sentences about what was left out."""
    dumps: dict[int, RankDump] = {}
    notes: list[str] = []
    num_left = _MAX_ALL_ENTRIES
    for file in files_of(path):
        if not _is_dump(file):
            continue
        try:
            dump = _read_dump(file)
        except ValueError as error:
            notes.append(f"Left out: {file.name}: {error}.")
            continue
        if dump.rank in dumps:
            notes.append(f"A second dump of rank {dump.rank} is left out: {file.name}.")
            continue
        if len(dump.entries) > num_left:
            notes.append(
                f"Left out: {file.name}: the dumps hold over {_MAX_ALL_ENTRIES:,} entries."
            )
            continue
        num_left -= len(dump.entries)
        dumps[dump.rank] = dump
    return dumps, notes


def _read_dump(file: Path) -> RankDump:
    data = read_content(file, _MAX_BYTES)
    fields = plain_values(data) if data[:1] == _PICKLE else json_values(data)
    if not isinstance(fields, dict):
        raise ValueError("it is not a dump")  # noqa: TRY004  # the user's file, not our type
    config, status = (_dict(fields.get(name)) for name in ("pg_config", "pg_status"))
    entries = fields.get("entries")
    entries = [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []
    return RankDump(
        rank=_rank(file, config), config=config, status=status, entries=entries[-_MAX_ENTRIES:]
    )


def _dict(value: Any) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _rank(file: Path, config: dict[str, Any]) -> int:
    """The one rank that all groups of the dump have in common; else the file name's last number."""
    # A dump is not self-describing (pytorch #117883), but a rank lists only its own groups.
    members = [set(ranks) for ranks in map(members_of, config.values()) if ranks]
    common = set.intersection(*members) if members else set()
    if len(common) == 1:
        return common.pop()
    numbers = re.findall(r"\d{1,7}", file.name.partition(".")[0])
    if not numbers:
        raise ValueError("nothing tells its rank; end its name with the rank")
    return int(numbers[-1])
