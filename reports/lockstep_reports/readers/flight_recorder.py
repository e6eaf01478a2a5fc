"""Reads Flight Recorder dumps of several ranks, pickled or as JSON, and joins them."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_records.file_access.compressed import read_content
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.collective_join import join
from lockstep_reports.readers.files import files_of, head, holds_any
from lockstep_reports.readers.flight_recorder_join import RankDump, join_dumps, members_of
from lockstep_reports.readers.unpickled import json_values, plain_values
from lockstep_reports.recording.collectives import FlightRecorderLog, Span
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import timed_steps

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
    """The dumps as a recording without steps.

    Raises:
        ValueError: no dump can be read; the text says why.
        OSError: a file cannot be read.
    """
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
