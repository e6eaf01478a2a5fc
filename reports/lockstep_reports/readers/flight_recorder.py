"""Reads Flight Recorder dumps of several ranks, pickled or as JSON, and joins them."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_records.compressed import read_content
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.collective_join import join
from lockstep_reports.readers.files import files_of, head
from lockstep_reports.readers.series import timed_steps
from lockstep_reports.readers.unpickled import plain_values
from lockstep_reports.recording.collectives import Span
from lockstep_reports.recording.flight_recorder_log import (
    FlightRecorderLog,
    PhaseAtHang,
    RankCollective,
)
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.wording import printable

_MAX_BYTES = 1 << 26
_MAX_ENTRIES = 1 << 18
_MAX_SNIFFED_FILES = 64
# The recorder's watchdog polls for completed work every 100 ms, and clocks of synchronised hosts
# hardly ever differ by more; starts that lie nearer together have no order.
_END_ERROR_SECONDS = 0.1
_PICKLE = b"\x80"
_DUMP_KEYS = (b"pg_config", b"pg_status", b"collective_seq_id")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Dump:
    rank: int
    config: dict[str, Any]
    status: dict[str, Any]
    entries: list[dict[str, Any]]


def recognises(path: Path) -> bool:
    """Whether it is a dump, or a folder with some."""
    try:
        return any(_is_dump(file) for file in files_of(path)[:_MAX_SNIFFED_FILES])
    except (OSError, ValueError):
        return False


def _is_dump(path: Path) -> bool:
    begin = head(path)
    if begin[:1] != _PICKLE and begin.lstrip()[:1] != b"{":
        return False
    # A profiler trace names process groups too, so its own key rules it out.
    return b"traceEvents" not in begin and any(key in begin for key in _DUMP_KEYS)


def read(path: Path, options: ReadOptions) -> Recording:
    """The dumps as a recording without steps.

    Raises:
        ValueError: no dump can be read; the text says why.
        OSError: a file cannot be read.
    """
    del options
    dumps, notes = _dumps_in(path)
    if not dumps:
        raise ValueError(f"no dump in {path} can be read: {notes[0] if notes else 'there is none'}")
    log = _join_dumps(dumps)
    collectives = join(_spans(log), _END_ERROR_SECONDS)
    if any(item.last_rank is None for item in collectives.items):
        notes.append(
            f"Arrivals less than {_END_ERROR_SECONDS:g} s apart have no order: clocks are not told "
            "more exactly by dumps."
        )
    world = 1 + max({*dumps, *(rank for members in log.groups.values() for rank in members)})
    ranks = sorted(dumps)
    steps = timed_steps(
        path.name,
        ranks,
        np.array([], dtype=np.int64),
        np.empty((len(ranks), 0)),
        world_size=world,
        notes=tuple(notes),
    )
    return Recording(
        source_kind="flight_recorder",
        path=path,
        steps=steps,
        events=(),
        attempts=(Attempt(number=0, outcome=None),),
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


def _dumps_in(path: Path) -> tuple[dict[int, _Dump], list[str]]:
    """The dumps by rank, and sentences about what was left out."""
    dumps: dict[int, _Dump] = {}
    notes: list[str] = []
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
        dumps[dump.rank] = dump
    return dumps, notes


def _read_dump(file: Path) -> _Dump:
    data = read_content(file, _MAX_BYTES)
    try:
        fields = plain_values(data) if data[:1] == _PICKLE else json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError("it is no dump")  # noqa: TRY004  # the user's file, not our type
    config, status = (_dict(fields.get(name)) for name in ("pg_config", "pg_status"))
    entries = fields.get("entries")
    entries = [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []
    return _Dump(
        rank=_rank(file, config), config=config, status=status, entries=entries[-_MAX_ENTRIES:]
    )


def _dict(value: Any) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _rank(file: Path, config: dict[str, Any]) -> int:
    """The one rank that all groups of the dump have in common; else the file name's last number."""
    # A dump is not self-describing (pytorch #117883), but a rank lists only its own groups.
    common: set[int] | None = None
    for group in config.values():
        members = set(_members(group))
        if members:
            common = members if common is None else common & members
    if common is not None and len(common) == 1:
        return common.pop()
    numbers = re.findall(r"\d{1,7}", file.name.partition(".")[0])
    if not numbers:
        raise ValueError("nothing tells its rank; end its name with the rank")
    return int(numbers[-1])


def _members(group: Any) -> tuple[int, ...]:
    ranks = group.get("ranks") if isinstance(group, dict) else None
    if isinstance(ranks, str):
        return tuple(int(number) for number in re.findall(r"\d{1,7}", ranks))
    if isinstance(ranks, list):
        return tuple(rank for rank in ranks if isinstance(rank, int))
    return ()


def _join_dumps(dumps: dict[int, _Dump]) -> FlightRecorderLog:
    groups = {name: _members(g) for d in dumps.values() for name, g in d.config.items()}
    names = {
        name: printable(str(group.get("desc") or ""))
        for dump in dumps.values()
        for name, group in dump.config.items()
        if isinstance(group, dict)
    }
    collectives = tuple(
        collective
        for dump in dumps.values()
        for entry in dump.entries
        if (collective := _collective(dump, entry))
    )
    for collective in collectives:
        if not groups.get(collective.group):
            members = {c.rank for c in collectives if c.group == collective.group}
            groups[collective.group] = tuple(sorted(members))
    return FlightRecorderLog(
        ranks=tuple(sorted(dumps)),
        groups=groups,
        names=names,
        phases_at_hang=_phases_at_hang(dumps, groups, collectives),
        collectives=collectives,
    )


def _collective(dump: _Dump, entry: dict[str, Any]) -> RankCollective | None:
    """An entry of a dump; None for point-to-point operations and for entries of no group."""
    group, sequence = entry.get("process_group"), entry.get("collective_seq_id")
    if entry.get("is_p2p") or not isinstance(sequence, int) or not group:
        return None
    name = str(group[0]) if isinstance(group, list | tuple) else str(group)
    operation = str(entry.get("profiling_name", "")).rpartition(":")[2]
    kind = _KINDS.get(re.sub(r"[^a-z]", "", operation.lower()), printable(operation)[:64])
    completed = entry.get("time_discovered_completed_ns")
    created = entry.get("time_created_ns")
    return RankCollective(
        rank=dump.rank,
        group=name,
        sequence=sequence,
        kind=kind,
        sizes=str(entry.get("input_sizes"))[:200],
        created_ns=created if isinstance(created, int) else None,
        completed_ns=completed if isinstance(completed, int) else None,
        # On gloo the state of a completed collective stays "scheduled".
        completed=entry.get("state") == "completed" or bool(entry.get("retired")),
    )


def _phases_at_hang(
    dumps: dict[int, _Dump],
    groups: dict[str, tuple[int, ...]],
    collectives: tuple[RankCollective, ...],
) -> dict[tuple[str, int], PhaseAtHang]:
    """By a rank's counters where it keeps them, else by its entries; keys are group and rank."""
    phases: dict[tuple[str, int], PhaseAtHang] = {}
    for collective in collectives:
        key, sequence = (collective.group, collective.rank), collective.sequence
        previous = phases.get(key, PhaseAtHang(entered=sequence, completed=sequence - 1))
        completed = sequence if collective.completed else previous.completed
        phases[key] = PhaseAtHang(
            entered=max(previous.entered, sequence), completed=max(previous.completed, completed)
        )
    numbers = _group_numbers(dumps)
    for name, members in groups.items():
        used = {numbers[name, rank] for rank in members if (name, rank) in numbers}
        for rank in members:
            # A rank without entries has numbered the group as its fellow members have.
            number = numbers.get((name, rank)) or (used.pop() if len(used) == 1 else None)
            if number is not None:
                used = used | {number}
                phase = _counted_phase(dumps.get(rank), number)
                if phase is not None:
                    phases[name, rank] = phase
    return phases


def _group_numbers(dumps: dict[int, _Dump]) -> dict[tuple[str, int], str]:
    """The number under which a rank's counters stand, by group and rank.

    Each rank numbers its groups itself; only entries show which number a group has.
    """
    numbers: dict[tuple[str, int], str] = {}
    for dump in dumps.values():
        for entry in dump.entries:
            group, number = entry.get("process_group"), entry.get("pg_id")
            if isinstance(group, list | tuple) and group and isinstance(number, int):
                numbers[str(group[0]), dump.rank] = str(number)
    return numbers


def _counted_phase(dump: _Dump | None, number: str) -> PhaseAtHang | None:
    counters = dump.status.get(number) if dump is not None else None
    if not isinstance(counters, dict):
        return None
    entered, completed = (
        counters.get(f"last_{name}_collective") for name in ("enqueued", "completed")
    )
    if not isinstance(entered, int) or not isinstance(completed, int) or entered < 0:
        return None
    return PhaseAtHang(entered=entered, completed=completed)
