"""Events of jobs that wait for delivery; they outlive the agent and the jobs' folders."""

from pathlib import Path
from typing import Any

from lockstep_agent.state_file import StateFile
from lockstep_records.events import FILE_NAME, parse_event
from lockstep_records.jobs import list_jobs

_MAX_PENDING = 10_000
_MAX_CHUNK_BYTES = 1 << 20

WireEvent = dict[str, Any]
"""An event as it is sent to the ledger."""


class Spool:
    """Takes in what is appended to the event files.

    The waiting events and the position in each file are saved as one object: saved apart, a crash
    between the two would lose events or send them twice.

    Args:
        root: folder that holds ``jobs/``.
        state: where the spool is saved.
        max_pending: beyond it the oldest events are dropped.

    Attributes:
        pending: events in the order in which they were read.
        dropped: number of events dropped because too many were waiting.
    """

    def __init__(self, root: Path, state: StateFile, max_pending: int = _MAX_PENDING) -> None:
        self._root, self._state, self._max_pending = root, state, max_pending
        self.pending: list[WireEvent] = []
        self.dropped = 0
        self._positions: dict[str, tuple[int, int]] = {}
        saved = state.load()
        try:
            self.pending = [dict(event) for event in saved.get("pending", ())]
            self._positions = {
                str(job): (int(inode), int(offset))
                for job, (inode, offset) in saved.get("read", {}).items()
            }
        except (TypeError, ValueError, AttributeError):
            self.pending, self._positions = [], {}

    def refresh(self) -> None:
        """Takes in the complete lines that were appended since the last call, and saves them."""
        jobs = {folder.name: folder / FILE_NAME for folder in list_jobs(self._root)}
        has_grown = False
        for job, path in jobs.items():
            has_grown = self._read_file(job, path) or has_grown
        removed = self._positions.keys() - jobs.keys()
        for job in removed:
            del self._positions[job]
        excess = max(len(self.pending) - self._max_pending, 0)
        if excess:
            del self.pending[:excess]
            self.dropped += excess
        if has_grown or removed:
            self._save()

    def remove_oldest(self, count: int) -> None:
        """Forgets the oldest events, which were delivered or refused."""
        del self.pending[:count]
        self._save()

    def _read_file(self, job: str, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                status = path.stat()
                inode, offset = self._positions.get(job, (0, 0))
                # another file under the same name, or a shorter one, is read from its begin
                if inode != status.st_ino or status.st_size < offset:
                    offset = 0
                file.seek(offset)
                chunk = file.read(_MAX_CHUNK_BYTES)
        except OSError:
            return False  # there are no events yet, or the folder is being removed
        complete = chunk[: chunk.rfind(b"\n") + 1]
        # A line longer than a chunk would hold up the file for ever.
        if not complete and len(chunk) == _MAX_CHUNK_BYTES:
            complete = chunk
        if not complete:
            return False
        lines = complete.decode(errors="replace").split("\n")
        events = (parse_event(line) for line in lines)
        self.pending.extend(event.document() for event in events if event is not None)
        self._positions[job] = (status.st_ino, offset + len(complete))
        return True

    def _save(self) -> None:
        self._state.save({"pending": self.pending, "read": self._positions})
