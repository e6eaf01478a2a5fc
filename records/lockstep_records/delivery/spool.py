"""Events that wait for delivery; they outlive the process and the jobs' folders, in SQLite.

The events and the position in each file change in one transaction: saved apart, a crash between the
two would lose events or send them twice. A file is its user's word on one job: who that user is,
the kernel says, and of which node and cluster the events are, the delivery says.
"""

import heapq
import itertools
import json
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep_records.events.bounds import MAX_LINE, EventError
from lockstep_records.events.event import FILE_NAME, MAX_FUTURE_SECONDS, Event, line_of, parse_line
from lockstep_records.events.kinds import EDGE_KINDS
from lockstep_records.file_access.foreign_files import open_foreign, owner_of
from lockstep_records.files.jobs import Roots, list_jobs, list_roots

MAX_REFUSED_BYTES = 8 << 20
"""Of refused events; the oldest go, of the user who has most of them."""
_KEEP = (
    "INSERT INTO refused (is_edge, text, owner, job, reason)"
    " SELECT is_edge, text, owner, job, ? FROM event WHERE number = ?"
)
_REFUSED = "SELECT owner, sum(length(CAST(text AS BLOB))) AS size FROM refused GROUP BY owner"
_OLDEST = (
    "SELECT number, length(CAST(text AS BLOB)) FROM refused WHERE owner = ?"
    " ORDER BY number LIMIT 500"
)
_REQUEUE = (
    "INSERT INTO event (is_edge, text, owner, job)"
    " SELECT is_edge, text, owner, job FROM refused WHERE number = ?"
)
_DELETE = "DELETE FROM refused WHERE number = ?"


def keep_refused(database: sqlite3.Connection, refusals: Mapping[int, str]) -> None:
    """Keeps waiting events that were refused, in the transaction of the caller."""
    database.executemany(_KEEP, [(reason, number) for number, reason in refusals.items()])
    sizes = Counter(dict(database.execute(_REFUSED).fetchall())) if refusals else Counter[int]()
    while (excess := sizes.total() - MAX_REFUSED_BYTES) > 0:
        [(owner, _)] = sizes.most_common(1)
        for oldest, size in database.execute(_OLDEST, (owner,)).fetchall():
            if excess <= 0:
                break
            database.execute(_DELETE, (oldest,))
            sizes[owner] -= size
            excess -= size


def requeue(path: Path, ids: Collection[str] = ()) -> int:
    """Lets refused events, all without ``ids``, of a spool wait again; how many. Or ValueError."""
    try:
        with closing(sqlite3.connect(path, timeout=30.0)) as database, database:
            rows = database.execute("SELECT number, text FROM refused ORDER BY number").fetchall()
            chosen = [n for n, text in rows if not ids or json.loads(text).get("id") in ids]
            for number in chosen:
                database.execute(_REQUEUE, (number,))
                database.execute(_DELETE, (number,))
    except sqlite3.Error as error:
        raise ValueError(f"{path} is not a spool of events ({error}); name spool.sqlite") from error
    return len(chosen)


def move_aside(path: Path) -> None:
    """Lets a damaged spool be, so that a new one takes its place."""
    path.replace(path.with_name(path.name + ".damaged"))
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()


_MODE = 0o600  # events name users and hosts
_SCHEMA = """
CREATE TABLE IF NOT EXISTS refused (
    number INTEGER PRIMARY KEY AUTOINCREMENT, is_edge INTEGER NOT NULL, text TEXT NOT NULL,
    owner INTEGER NOT NULL, job TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, is_edge INTEGER NOT NULL, text TEXT NOT NULL,
    owner INTEGER NOT NULL, job TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS position (
    job TEXT PRIMARY KEY, inode INTEGER NOT NULL, byte INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS launcher (job TEXT PRIMARY KEY, number INTEGER NOT NULL);
"""
_INDICES = """
CREATE INDEX IF NOT EXISTS by_job ON event (owner, job, is_edge, number);
CREATE INDEX IF NOT EXISTS by_owner ON event (owner, number);
"""


def open_database(path: Path | None) -> sqlite3.Connection:
    """The database at a path; in memory where there is none or it cannot be written."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=_MODE)
            try:
                return _connect(str(path))
            except sqlite3.DatabaseError as error:
                _log.warning("spool=%s cannot be read and is moved aside: %s", path, error)
                move_aside(path)
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
        database.executescript(_SCHEMA + _INDICES)
        database.execute("SELECT count(*) FROM event").fetchone()
    except sqlite3.Error:
        database.close()
        raise
    return database


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
    """The row of a line, stamped with its owner and its launcher; EventError for another job's."""
    event = parse_line(line)
    if event.job_id != job:
        sentence = f"job_id {event.job_id!r} must be {job!r}, the folder of the file"
        raise EventError("value", sentence)
    if event.time > time.time() + MAX_FUTURE_SECONDS:
        raise EventError("future", f"time {event.time:.0f} has not come; set the clock of the node")
    user = None if owner == NOBODY else owner
    # Of which cluster and node it is, the delivery says.
    text = line_of(replace(event, cluster=None, node=None, launcher=launcher, owner=user))
    if len(text) > MAX_LINE:
        raise EventError("value", f"the event has {len(text)} characters; {MAX_LINE} fit")
    return event.kind in EDGE_KINDS, text, owner, job


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


_log = logging.getLogger(__name__)

SPOOL_BYTES = 64 << 20
"""Default bound of the waiting events."""
EVENT_BYTES = 600
"""A generous mean of what an event takes in a spool; a test measures it on the events of a job."""
_ROW_BYTES = 120  # of SQLite's own for a row, its job and its place in the indexes
# What is read at a call, of a user and of all.
_OWNER_BYTES, _ALL_BYTES = 256 << 10, 4 << 20
_OWNER_FILES, _LOG_SECONDS = 200, 60.0
_MAX_LOGGED_JOBS, _FLUSH_BATCH = 1000, 500
_NEXT = "SELECT number, text, owner, job FROM event WHERE owner = ? ORDER BY number LIMIT ?"
_LAUNCHERS = "SELECT job, number FROM launcher WHERE job LIKE ?"
_FORGET = ("DELETE FROM position WHERE job = ?", "DELETE FROM launcher WHERE job = ?")
_SIZES = (
    "SELECT owner, job, count(*), sum(length(CAST(text AS BLOB))) FROM event GROUP BY owner, job"
)
_Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class SpooledEvent:
    """A waiting event, in the order of reading, with all its fields, of a folder's owner."""

    number: int
    text: str
    owner: int = NOBODY
    job: str = ""

    @property
    def size_bytes(self) -> int:
        """What it takes in the spool."""
        return len(self.text.encode()) + _ROW_BYTES


class EventSpool:
    """Takes in what is appended to the event files of all jobs.

    A job, and a user, is read by a bounded part at a call, those first that waited longest.

    Args:
        path: of the database; None, or where it cannot be written, keeps the events in memory.
        max_bytes: beyond it events are dropped: of the user who has most waiting, of his largest
            job, the oldest first, those that begin or end a job or an attempt last.

    Attributes:
        dropped: number of events dropped because too many were waiting.
        refused: number of lines that are not events of their job, or exceed a bound.
    """

    def __init__(
        self,
        root: Roots,
        path: Path | None,
        max_bytes: int = SPOOL_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._max_bytes, self._clock = root, max_bytes, clock
        self._database = open_database(path)
        self.dropped = self.refused = self.num_pending = 0
        self._version = -1
        self._measure()
        self._read_at: dict[str, int] = {}
        self._served: dict[int, int] = {}
        self._num_calls = 0
        self._logged: dict[str, float] = {}
        self._has_failed = False

    def _measure(self) -> None:
        """Counts what waits, where another process has changed it."""
        version = self._database.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return
        self._version, self.num_pending = version, 0
        self._sizes: Counter[_Key] = Counter()
        for owner, job, count, text_bytes in self._database.execute(_SIZES):
            self.num_pending += count
            self._sizes[owner, job] = text_bytes + _ROW_BYTES * count

    @property
    def fill_ratio(self) -> float:
        """Size of the waiting events, of what the spool may hold."""
        return min(1.0, self._sizes.total() / self._max_bytes)

    def refresh(self) -> None:
        """Takes in complete lines that were appended since the last call, and saves them."""
        folders = {str(folder): folder for folder in list_jobs(self._root)}
        self._num_calls += 1
        self._read_at = {name: self._read_at.get(name, 0) for name in folders}
        try:
            self._measure()
            positions = {
                job: (inode, byte)
                for job, inode, byte in self._database.execute("SELECT * FROM position")
            }
            with self._database:
                jobs = {job for (job,) in self._database.execute("SELECT job FROM launcher")}
                for query in _FORGET:
                    self._database.executemany(query, [(job,) for job in jobs - folders.keys()])
                added = self._read_files(folders, positions)
            self._count(added)
            self._drop_excess()
        except sqlite3.Error as error:  # a full disk: the files of events are read again later
            self._log_failure(error)

    def add(self, events: Iterable[Event]) -> None:
        """Takes in events of the process itself, which stand in no file."""
        with self._database:
            added = []
            for event in events:
                folders = (root / "jobs" / event.job_id for root in list_roots(self._root))
                users = [each for each in map(_owner_of, folders) if each is not None]
                key = ((*users, NOBODY)[0], event.job_id)
                added += self._store(key, [line_of(event)], event.launcher)
        self._count(added)
        self._drop_excess()

    def next_batch(self, count: int, size_bytes: int) -> list[SpooledEvent]:
        """The events to be sent next, those of a user in order.

        Whoever has the fewest bytes in the batch is next, and among these who waited longest.
        """
        owners = {owner for owner, _ in self._sizes}
        queues = {owner: self._database.execute(_NEXT, (owner, count)) for owner in owners}
        turns = [(0, self._served.get(owner, 0), owner) for owner in owners]
        heapq.heapify(turns)
        batch: list[SpooledEvent] = []
        while turns and len(batch) < count:
            taken_bytes, turn, owner = heapq.heappop(turns)
            row = next(queues[owner], None)
            if row is None:
                continue
            event = SpooledEvent(*row)
            size_bytes -= event.size_bytes
            if batch and size_bytes < 0:
                break
            batch.append(event)
            heapq.heappush(turns, (taken_bytes + event.size_bytes, turn, owner))
        newest = max(self._served.values(), default=0) + 1
        self._served = {owner: self._served.get(owner, 0) for owner in owners}
        self._served |= dict.fromkeys((event.owner for event in batch), newest)
        return batch

    def remove(
        self, events: Iterable[SpooledEvent], refusals: Mapping[int, str] | None = None
    ) -> None:
        """Forgets events that were delivered; what was refused, by its number, is set aside."""
        query = "DELETE FROM event WHERE number = ?"
        with self._database:
            keep_refused(self._database, refusals or {})
            removed = [e for e in events if self._database.execute(query, (e.number,)).rowcount]
        self.num_pending -= len(removed)
        for event in removed:
            self._sizes[event.owner, event.job] -= event.size_bytes
        self._sizes = +self._sizes

    def close(self) -> None:
        """Closes the database; what waits stays in it."""
        self._database.close()

    def _read_files(
        self, folders: dict[str, Path], positions: dict[str, tuple[int, int]]
    ) -> list[tuple[_Key, int]]:
        """Reads the files that waited longest first, within the bounds; what was added."""
        read_bytes: Counter[int] = Counter()
        num_files: Counter[int] = Counter()
        added: list[tuple[_Key, int]] = []
        for key in sorted(self._read_at, key=self._read_at.__getitem__):
            owner, job = _owner_of(folders[key]), folders[key].name
            if owner is None or num_files[owner] >= _OWNER_FILES:
                continue
            budget = min(_OWNER_BYTES - read_bytes[owner], _ALL_BYTES - read_bytes.total())
            if budget < JOB_BYTES:
                continue
            self._read_at[key] = self._num_calls
            num_files[owner] += 1
            chunk = read_lines(folders[key] / FILE_NAME, owner, *positions.get(key, (0, 0)))
            if chunk is None:
                continue
            read_bytes[owner] += sum(map(len, chunk.lines))
            added += self._store((owner, job), chunk.lines, self.launcher_of(folders[key]))
            position = (key, chunk.inode, chunk.byte)
            self._database.execute("REPLACE INTO position VALUES (?, ?, ?)", position)
        return added

    def launcher_of(self, folder: Path) -> str | None:
        """Which of the launchers of a job on this node has a folder; None of the first one.

        Pods of one job have a folder each. A number stays with its folder, and is free again once
        the folder has gone: a pod that takes the place of another is the same launcher.
        """
        numbers = dict(self._database.execute(_LAUNCHERS, (f"%/{folder.name}",)))
        if str(folder) not in numbers:
            taken = {number for path, number in numbers.items() if Path(path).name == folder.name}
            numbers[str(folder)] = next(n for n in itertools.count(1) if n not in taken)
            with self._database:
                row = (str(folder), numbers[str(folder)])
                self._database.execute("INSERT INTO launcher VALUES (?, ?)", row)
        number = numbers[str(folder)]
        return str(number) if number > 1 else None

    def _store(self, key: _Key, lines: list[str], launcher: str | None) -> list[tuple[_Key, int]]:
        """Adds the lines that are events of the job; key and size of each."""
        rows = []
        for line in lines:
            try:
                rows.append(row_of(line, *key, launcher))
            except EventError as error:
                self._refuse(key, error)
        insert = "INSERT INTO event (is_edge, text, owner, job) VALUES (?, ?, ?, ?)"
        self._database.executemany(insert, rows)
        return [(key, len(text.encode()) + _ROW_BYTES) for _, text, *_ in rows]

    def _count(self, added: list[tuple[_Key, int]]) -> None:
        self.num_pending += len(added)
        for key, size in added:
            self._sizes[key] += size

    def _refuse(self, key: _Key, error: EventError) -> None:
        self.refused += 1
        (owner, job), now = key, self._clock()
        if now < self._logged.get(job, now):
            return
        if len(self._logged) >= _MAX_LOGGED_JOBS:
            del self._logged[next(iter(self._logged))]
        self._logged[job] = now + _LOG_SECONDS
        _log.warning(
            "spool=refused job=%s owner=%d file=%s reason=%r", job, owner, FILE_NAME, str(error)
        )

    def _drop_excess(self) -> None:
        query = (
            "SELECT number, text, owner, job FROM event WHERE owner = ? AND job = ?"
            " ORDER BY is_edge, number LIMIT ?"
        )
        while (excess := self._sizes.total() - self._max_bytes) > 0 and self.num_pending:
            key = self._largest()
            dropped = []
            for row in self._database.execute(query, (*key, _FLUSH_BATCH)):
                if excess <= 0:
                    break
                dropped.append(SpooledEvent(*row))
                excess -= dropped[-1].size_bytes
            self.remove(dropped)
            self.dropped += len(dropped)

    def _largest(self) -> _Key:
        """The job that has most waiting, of the user who has most waiting."""
        by_owner: Counter[int] = Counter()
        for (owner, _), size in self._sizes.items():
            by_owner[owner] += size
        [(largest, _)] = by_owner.most_common(1)
        return max((key for key in self._sizes if key[0] == largest), key=self._sizes.__getitem__)

    def _log_failure(self, error: sqlite3.Error) -> None:
        if not self._has_failed:
            _log.warning("spool=fails reason=%r", str(error))
        self._has_failed = True


def _owner_of(folder: Path) -> int | None:
    try:
        return owner_of(folder)
    except OSError:
        return None
