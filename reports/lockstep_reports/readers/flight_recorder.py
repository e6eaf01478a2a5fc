"""Reads Flight Recorder dumps of several ranks, pickled or as JSON, and joins them."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.series import timed_steps
from lockstep_reports.readers.unpacked import files_of, head, whole
from lockstep_reports.readers.unpickled import plain_values
from lockstep_reports.recording.collectives import Span, join
from lockstep_reports.recording.flight_recorder_log import Flight, FlightLog, Standing
from lockstep_reports.recording.read import Attempt, Recording
from lockstep_reports.wording import printable

_MAX_BYTES = 1 << 26
_MAX_ENTRIES = 1 << 18
# A recorder's watchdog looks every 100 ms for what has ended, and clocks of synchronised hosts
# hardly ever differ by more; begins that lie nearer together have no order.
_BLUR_SECONDS = 0.1
_PICKLE = b"\x80"
_TELLING = (b"pg_config", b"pg_status", b"collective_seq_id")
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
        return any(_is_dump(file) for file in files_of(path)[:64])
    except (OSError, ValueError):
        return False


def _is_dump(path: Path) -> bool:
    begin = head(path)
    if begin[:1] != _PICKLE and begin.lstrip()[:1] != b"{":
        return False
    return b"traceEvents" not in begin and any(word in begin for word in _TELLING)


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
    log = _joined(dumps)
    collectives = join(_spans(log), _BLUR_SECONDS)
    if any(item.last_rank is None for item in collectives.items):
        notes.append(
            f"Arrivals less than {_BLUR_SECONDS:g} s apart have no order: clocks are not told "
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
        flights=log,
        collectives=collectives if collectives.items else None,
    )


def _spans(log: FlightLog) -> Iterator[Span]:
    """Collectives from the moment a rank handed them over to when its recorder saw them done."""
    for flight in log.flights:
        if flight.created_ns is not None:
            done = flight.completed_ns
            yield Span(
                key=(flight.group, flight.sequence),
                kind=flight.kind,
                rank=flight.rank,
                start=flight.created_ns / 1e9,
                end=math.nan if done is None else done / 1e9,
            )


def _dumps_in(path: Path) -> tuple[dict[int, _Dump], list[str]]:
    """The dumps by rank, and sentences about what was left out."""
    dumps: dict[int, _Dump] = {}
    notes: list[str] = []
    for file in files_of(path):
        if not _is_dump(file):
            continue
        try:
            dump = _dump(file)
        except ValueError as error:
            notes.append(f"Left out: {file.name}: {error}.")
            continue
        if dump.rank in dumps:
            notes.append(f"A second dump of rank {dump.rank} is left out: {file.name}.")
            continue
        dumps[dump.rank] = dump
    return dumps, notes


def _dump(file: Path) -> _Dump:
    data = whole(file, _MAX_BYTES)
    try:
        told = plain_values(data) if data[:1] == _PICKLE else json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(told, dict):
        raise ValueError("it is no dump")  # noqa: TRY004  # the user's file, not our type
    config, status = (_dict(told.get(name)) for name in ("pg_config", "pg_status"))
    entries = told.get("entries")
    entries = [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []
    return _Dump(
        rank=_rank(file, config), config=config, status=status, entries=entries[-_MAX_ENTRIES:]
    )


def _dict(value: Any) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _rank(file: Path, config: dict[str, Any]) -> int:
    """Whom the groups have in common, for a rank lists its own; else the name's last number."""
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


def _joined(dumps: dict[int, _Dump]) -> FlightLog:
    groups = {name: _members(g) for d in dumps.values() for name, g in d.config.items()}
    names = {
        name: printable(str(group.get("desc") or ""))
        for dump in dumps.values()
        for name, group in dump.config.items()
        if isinstance(group, dict)
    }
    flights = tuple(f for dump in dumps.values() for e in dump.entries if (f := _flight(dump, e)))
    for flight in flights:
        if not groups.get(flight.group):
            seen = {f.rank for f in flights if f.group == flight.group}
            groups[flight.group] = tuple(sorted(seen))
    return FlightLog(
        ranks=tuple(sorted(dumps)),
        groups=groups,
        names=names,
        standings=_standings(dumps, groups, flights),
        flights=flights,
    )


def _flight(dump: _Dump, entry: dict[str, Any]) -> Flight | None:
    group, sequence = entry.get("process_group"), entry.get("collective_seq_id")
    if entry.get("is_p2p") or not isinstance(sequence, int) or not group:
        return None
    name = str(group[0]) if isinstance(group, list | tuple) else str(group)
    said = str(entry.get("profiling_name", "")).rpartition(":")[2]
    kind = _KINDS.get(re.sub(r"[^a-z]", "", said.lower()), printable(said)[:64])
    completed = entry.get("time_discovered_completed_ns")
    created = entry.get("time_created_ns")
    return Flight(
        rank=dump.rank,
        group=name,
        sequence=sequence,
        kind=kind,
        sizes=str(entry.get("input_sizes"))[:200],
        created_ns=created if isinstance(created, int) else None,
        completed_ns=completed if isinstance(completed, int) else None,
        completed=entry.get("state") == "completed" or bool(entry.get("retired")),
    )


def _standings(
    dumps: dict[int, _Dump], groups: dict[str, tuple[int, ...]], flights: tuple[Flight, ...]
) -> dict[tuple[str, int], Standing]:
    """By the counters where a rank keeps them, else by its entries.

    Counters are by a number that each rank gives a group; entries tell which group that is, and
    a rank without entries has numbered a group as its fellow members have.
    """
    numbers: dict[tuple[str, int], str] = {}
    for dump in dumps.values():
        for entry in dump.entries:
            group, number = entry.get("process_group"), entry.get("pg_id")
            if isinstance(group, list | tuple) and group and isinstance(number, int):
                numbers[str(group[0]), dump.rank] = str(number)
    found: dict[tuple[str, int], Standing] = {}
    for flight in flights:
        place = flight.group, flight.rank
        old = found.get(place, Standing(entered=flight.sequence, completed=flight.sequence - 1))
        done = flight.sequence if flight.completed else old.completed
        found[place] = Standing(
            entered=max(old.entered, flight.sequence), completed=max(old.completed, done)
        )
    for name, members in groups.items():
        used = {numbers[name, rank] for rank in members if (name, rank) in numbers}
        for rank in members:
            number = numbers.get((name, rank)) or (used.pop() if len(used) == 1 else None)
            if number is not None:
                used = used | {number}
                standing = _counted(dumps.get(rank), number)
                if standing is not None:
                    found[name, rank] = standing
    return found


def _counted(dump: _Dump | None, number: str) -> Standing | None:
    told = dump.status.get(number) if dump is not None else None
    if not isinstance(told, dict):
        return None
    entered, done = (told.get(f"last_{name}_collective") for name in ("enqueued", "completed"))
    if not isinstance(entered, int) or not isinstance(done, int) or entered < 0:
        return None
    return Standing(entered=entered, completed=done)
