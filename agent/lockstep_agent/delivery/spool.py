"""Events of jobs that wait for delivery; they outlive the agent and the jobs' folders."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep_agent.state_file import StateFile
from lockstep_records.events import FILE_NAME, parse_event
from lockstep_records.jobs import list_jobs

_MOST_PENDING = 10_000
_MOST_BYTES_AT_ONCE = 1 << 20

Wire = dict[str, Any]
"""An event as it goes over the wire."""


class Spool:
    """Takes in what the event files gained; positions and waiting events are kept as one.

    Args:
        root: folder that holds ``jobs/``.
        most_pending: the oldest are dropped beyond.

    Attributes:
        pending: events in the order in which they were found.
        dropped: events that went because there were too many.
    """

    def __init__(self, root: Path, state: StateFile, most_pending: int = _MOST_PENDING) -> None:
        self._root, self._state, self._most_pending = root, state, most_pending
        self.pending: list[Wire] = []
        self.dropped = 0
        self._read: dict[str, tuple[int, int]] = {}
        told = state.load()
        try:
            self.pending = [dict(event) for event in told.get("pending", ())]
            self._read = {
                str(job): (int(inode), int(offset))
                for job, (inode, offset) in told.get("read", {}).items()
            }
        except (TypeError, ValueError, AttributeError):
            self.pending, self._read = [], {}

    def refresh(self) -> None:
        """Reads the whole lines that were added since the last call, and keeps them."""
        jobs = {folder.name: folder / FILE_NAME for folder in list_jobs(self._root)}
        changed = False
        for job, path in jobs.items():
            changed = self._read_file(job, path) or changed
        gone = self._read.keys() - jobs.keys()
        for job in gone:
            del self._read[job]
        excess = max(len(self.pending) - self._most_pending, 0)
        if excess:
            del self.pending[:excess]
            self.dropped += excess
        if changed or gone:
            self._save()

    def take_away(self, number: int) -> None:
        """Forgets the oldest events, which were delivered or refused."""
        del self.pending[:number]
        self._save()

    def _read_file(self, job: str, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                status = path.stat()
                inode, offset = self._read.get(job, (0, 0))
                if inode != status.st_ino or status.st_size < offset:
                    offset = 0
                file.seek(offset)
                chunk = file.read(_MOST_BYTES_AT_ONCE)
        except OSError:
            return False  # there are no events yet, or the folder is being removed
        whole = chunk[: chunk.rfind(b"\n") + 1]
        if not whole and len(chunk) == _MOST_BYTES_AT_ONCE:
            whole = chunk
        if not whole:
            return False
        lines = whole.decode(errors="replace").split("\n")
        found = (parse_event(line) for line in lines)
        self.pending.extend(asdict(event) for event in found if event is not None)
        self._read[job] = (status.st_ino, offset + len(whole))
        return True

    def _save(self) -> None:
        self._state.save({"pending": self.pending, "read": self._read})
