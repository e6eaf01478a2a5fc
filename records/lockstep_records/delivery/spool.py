"""Events that wait for delivery; they outlive the process and the jobs' folders, in SQLite.

The events and the position in each file change in one transaction: saved apart, a crash between the
two would lose events or send them twice.
"""

import contextlib
import json
import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lockstep_records.event_kinds import EDGE_KINDS
from lockstep_records.events import FILE_NAME, Event, parse_event
from lockstep_records.jobs import list_jobs

_log = logging.getLogger(__name__)

SPOOL_BYTES = 64 << 20
"""Default bound of the waiting events."""
EVENT_BYTES = 600
"""A generous mean of what an event takes in a spool; a test measures it on the events of a job."""
_ROW_BYTES = 80  # of SQLite's own for a row and its place in the index
_MAX_CHUNK_BYTES = 1 << 20
_MODE = 0o600  # events name users and hosts
_FLUSH_BATCH = 500
_SCHEMA = """
CREATE TABLE IF NOT EXISTS event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, is_edge INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_worth ON event (is_edge, number);
CREATE TABLE IF NOT EXISTS position (
    job TEXT PRIMARY KEY, inode INTEGER NOT NULL, byte INTEGER NOT NULL);
"""


def lossless_hours(events_per_hour: float, max_bytes: int = SPOOL_BYTES) -> float:
    """Hours for which a ledger may be away before the first event is dropped."""
    return float(max_bytes) / (events_per_hour * EVENT_BYTES)


@dataclass(frozen=True, slots=True)
class SpooledEvent:
    """A waiting event.

    Attributes:
        number: its place in the spool; rises in the order of reading.
        text: the line as its writer wrote it, with fields that this version does not know.
    """

    number: int
    text: str


class EventSpool:
    """Takes in what is appended to the event files of all jobs.

    Args:
        root: folder that holds ``jobs/``.
        path: of the database; None, or where it cannot be written, keeps the events in memory.
        max_bytes: beyond it events are dropped, the oldest first, those that begin or end a job or
            an attempt last.

    Attributes:
        dropped: number of events dropped because too many were waiting.
    """

    def __init__(self, root: Path, path: Path | None, max_bytes: int = SPOOL_BYTES) -> None:
        self._root, self._max_bytes = root, max_bytes
        self._database = _open(path)
        self.dropped = 0
        sizes = "SELECT count(*), coalesce(sum(length(CAST(text AS BLOB))), 0) FROM event"
        self.num_pending, text_bytes = self._database.execute(sizes).fetchone()
        self._bytes: int = text_bytes + _ROW_BYTES * self.num_pending
        self._has_failed = False

    @property
    def fill_ratio(self) -> float:
        """Size of the waiting events, of what the spool may hold."""
        return min(1.0, self._bytes / self._max_bytes)

    def refresh(self) -> None:
        """Takes in the complete lines that were appended since the last call, and saves them."""
        jobs = {folder.name: folder / FILE_NAME for folder in list_jobs(self._root)}
        positions = {
            job: (inode, byte)
            for job, inode, byte in self._database.execute("SELECT job, inode, byte FROM position")
        }
        try:
            for job in positions.keys() - jobs.keys():
                with self._database:
                    self._database.execute("DELETE FROM position WHERE job = ?", (job,))
            for job, path in jobs.items():
                self._read_file(job, path, *positions.get(job, (0, 0)))
            self._drop_excess()
        except sqlite3.Error as error:  # a full disk: the files of events are read again later
            self._log_failure(error)

    def add(self, events: Iterable[Event]) -> None:
        """Takes in events of the process itself, which stand in no file."""
        lines = [json.dumps(event.document(), separators=(",", ":")) for event in events]
        if lines:
            self._store(lines, None)
            self._drop_excess()

    def oldest(self, count: int) -> list[SpooledEvent]:
        """The events to be sent next, in order."""
        query = "SELECT number, text FROM event ORDER BY number LIMIT ?"
        return [SpooledEvent(*row) for row in self._database.execute(query, (count,))]

    def remove(self, events: Iterable[SpooledEvent]) -> None:
        """Forgets events that were delivered or refused."""
        sizes = [(event.number, len(event.text.encode()) + _ROW_BYTES) for event in events]
        with self._database:
            for number, size in sizes:
                removed = self._database.execute("DELETE FROM event WHERE number = ?", (number,))
                self.num_pending -= removed.rowcount
                self._bytes -= size * removed.rowcount

    def close(self) -> None:
        """Closes the database; what waits stays in it."""
        self._database.close()

    def _read_file(self, job: str, path: Path, inode: int, byte: int) -> None:
        try:
            with path.open("rb") as file:
                status = path.stat()
                # another file under the same name, or a shorter one, is read from its begin
                if inode != status.st_ino or status.st_size < byte:
                    byte = 0
                file.seek(byte)
                chunk = file.read(_MAX_CHUNK_BYTES)
        except OSError:
            return  # there are no events yet, or the folder is being removed
        complete = chunk[: chunk.rfind(b"\n") + 1]
        # A line longer than a chunk would hold up the file for ever.
        if not complete and len(chunk) == _MAX_CHUNK_BYTES:
            complete = chunk
        if complete:
            lines = complete.decode(errors="replace").split("\n")
            self._store(lines, (job, status.st_ino, byte + len(complete)))

    def _store(self, lines: list[str], position: tuple[str, int, int] | None) -> None:
        """Adds the lines that are events, and where their file is read to, in one transaction."""
        rows = [
            (event.kind in EDGE_KINDS, line)
            for line in lines
            if (event := parse_event(line)) is not None
        ]
        with self._database:
            self._database.executemany("INSERT INTO event (is_edge, text) VALUES (?, ?)", rows)
            if position is not None:
                self._database.execute("REPLACE INTO position VALUES (?, ?, ?)", position)
        self.num_pending += len(rows)
        self._bytes += sum(len(line.encode()) + _ROW_BYTES for _, line in rows)

    def _drop_excess(self) -> None:
        query = "SELECT number, text FROM event ORDER BY is_edge, number LIMIT ?"
        while self._bytes > self._max_bytes and self.num_pending:
            excess = self._bytes - self._max_bytes
            dropped = []
            for row in self._database.execute(query, (_FLUSH_BATCH,)):
                if excess <= 0:
                    break
                dropped.append(SpooledEvent(*row))
                excess -= len(row[1].encode()) + _ROW_BYTES
            self.remove(dropped)
            self.dropped += len(dropped)

    def _log_failure(self, error: sqlite3.Error) -> None:
        if not self._has_failed:
            _log.warning("spool=fails reason=%r", str(error))
        self._has_failed = True


def _open(path: Path | None) -> sqlite3.Connection:
    """The database at a path; in memory where there is none or it cannot be written."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=_MODE)
            try:
                return _connect(str(path))
            except sqlite3.DatabaseError as error:
                _log.warning("spool=%s cannot be read and is moved aside: %s", path, error)
                _move_aside(path)
                return _connect(str(path))
        except (OSError, sqlite3.Error) as error:
            _log.warning("spool=%s cannot be written, events wait in memory: %s", path, error)
    return _connect(":memory:")


def _connect(name: str) -> sqlite3.Connection:
    # A collector's thread is another one after the watchdog gave one up; never two at a time.
    database = sqlite3.connect(name, timeout=5.0, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")  # what was taken in outlives a power cut
        database.execute("PRAGMA auto_vacuum = FULL")
        database.executescript(_SCHEMA)
        database.execute("SELECT count(*) FROM event").fetchone()
    except sqlite3.Error:
        database.close()
        raise
    return database


def _move_aside(path: Path) -> None:
    path.replace(path.with_name(path.name + ".damaged"))
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()
