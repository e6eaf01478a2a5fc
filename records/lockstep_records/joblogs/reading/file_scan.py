"""One file of a job's log, scanned."""

from dataclasses import dataclass

from lockstep_records.joblogs.reading.scan import Scan


@dataclass(frozen=True, slots=True)
class FileScan:
    """A file's scan, and the rank in its name."""

    scan: Scan
    rank: int | None
