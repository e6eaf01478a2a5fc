"""The newest events of a job, however long its file is."""

import os
from pathlib import Path

from lockstep_records.events.event import Event, parse_lines
from lockstep_records.file_access.foreign_files import open_foreign

_TAIL_BYTES = 256 << 10


def last_events(path: Path, owner: int) -> list[Event]:
    """Events at the end of a job's file, in the order of writing; its end is among them.

    The file must have the owner of the job's folder.

    Raises:
        OSError: the file cannot be read.
    """
    with open_foreign(path, owner=owner) as descriptor:
        begin = max(os.fstat(descriptor).st_size - _TAIL_BYTES, 0)
        lines = os.pread(descriptor, _TAIL_BYTES, begin).decode(errors="replace").splitlines()
    return parse_lines(lines)
