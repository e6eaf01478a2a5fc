"""Reads what a user appended to a job's file of events, and makes rows of a spool of it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from lockstep_records.events.bounds import EventError
from lockstep_records.events.event import document_of
from lockstep_records.events.kinds import EDGE_KINDS
from lockstep_records.file_access.foreign_files import open_foreign

# More than a job writes between two calls, and little enough to parse in a moment.
JOB_BYTES = 128 << 10
"""What is read of a file at once."""
NOBODY = -1
"""The owner of an event whose job has no folder."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines that were appended to the file of a job, and where they end."""

    inode: int
    byte: int
    lines: list[str]


def row_of(line: str, owner: int, job: str, launcher: str | None) -> tuple[bool, str, int, str]:
    """The row of a line, stamped with its owner and its launcher.

    Raises:
        EventError: the line is not an event, or one of another job.
    """
    document = document_of(line)
    if document["job_id"] != job:
        sentence = f"job_id {document['job_id']!r} must be {job!r}, the folder of the file"
        raise EventError("value", sentence)
    # Of which cluster and node it is, the delivery says.
    for member in ("cluster", "node", "launcher", "owner"):
        document.pop(member, None)
    if owner != NOBODY:
        document["owner"] = owner
    if launcher is not None:
        document["launcher"] = launcher
    return document["kind"] in EDGE_KINDS, json.dumps(document, separators=(",", ":")), owner, job


def read_lines(path: Path, owner: int, inode: int, byte: int) -> Chunk | None:
    """What is new in a file of events; None where nothing is."""
    try:
        with open_foreign(path, owner=owner) as descriptor:
            status = os.fstat(descriptor)
            # another file under the same name, or a shorter one, is read from its begin
            if inode != status.st_ino or status.st_size < byte:
                byte = 0
            data = os.pread(descriptor, JOB_BYTES, byte)
    except OSError:
        return None  # no file yet, or the folder is being removed
    complete = data[: data.rfind(b"\n") + 1]
    # A line longer than a chunk would hold up the file for ever.
    if not complete and len(data) == JOB_BYTES:
        complete = data
    if not complete:
        return None
    lines = complete.decode(errors="replace").split("\n")
    return Chunk(status.st_ino, byte + len(complete), [line for line in lines if line.strip()])
