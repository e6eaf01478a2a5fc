"""What the reader of logs returns: the lines of one job, with no steps by rank."""

from dataclasses import dataclass
from pathlib import Path

from lockstep_records.joblogs.model import JobLog


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LogRecording:
    """The log of a job, as its reader found it.

    Attributes:
        source_kind: kind of the reader, ``log``.
        path: the file, or the folder of log files.
        log: the parsed lines.
    """

    source_kind: str
    path: Path
    log: JobLog
