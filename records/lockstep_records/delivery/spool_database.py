"""The database of a spool: its tables, refused events, and what is done without it."""

import json
import logging
import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path

MAX_BYTES = 8 << 20
"""Of refused events; the oldest go."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS refused (
    number INTEGER PRIMARY KEY AUTOINCREMENT, is_edge INTEGER NOT NULL, text TEXT NOT NULL,
    owner INTEGER NOT NULL, job TEXT NOT NULL, reason TEXT NOT NULL);
"""
_KEEP = (
    "INSERT INTO refused (is_edge, text, owner, job, reason)"
    " SELECT is_edge, text, owner, job, ? FROM event WHERE number = ?"
)
_SIZE = "SELECT coalesce(sum(length(CAST(text AS BLOB))), 0) FROM refused"
_OLDEST = "SELECT number, length(CAST(text AS BLOB)) FROM refused ORDER BY number LIMIT 500"
_REQUEUE = (
    "INSERT INTO event (is_edge, text, owner, job)"
    " SELECT is_edge, text, owner, job FROM refused WHERE number = ?"
)
_DELETE = "DELETE FROM refused WHERE number = ?"


def keep_refused(database: sqlite3.Connection, number: int, reason: str) -> None:
    """Keeps a waiting event that was refused, in the transaction of the caller."""
    database.execute(_KEEP, (reason, number))
    excess = database.execute(_SIZE).fetchone()[0] - MAX_BYTES
    while excess > 0:
        for oldest, size in database.execute(_OLDEST).fetchall():
            if excess > 0:
                database.execute(_DELETE, (oldest,))
                excess -= size


def requeue(path: Path, ids: Collection[str] = ()) -> int:
    """Lets refused events of a spool wait for delivery again; how many.

    Args:
        path: of the spool; an agent may have it open.
        ids: only events of these; all where empty.

    Raises:
        ValueError: the file is another one.
    """
    try:
        with closing(sqlite3.connect(path, timeout=30.0)) as database, database:
            database.executescript(SCHEMA)
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


_log = logging.getLogger(__name__)
_MODE = 0o600  # events name users and hosts
_SCHEMA = """
CREATE TABLE IF NOT EXISTS event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, is_edge INTEGER NOT NULL, text TEXT NOT NULL,
    owner INTEGER NOT NULL, job TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS position (
    job TEXT PRIMARY KEY, inode INTEGER NOT NULL, byte INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS launcher (job TEXT PRIMARY KEY, number INTEGER NOT NULL);
"""
_INDEX = "CREATE INDEX IF NOT EXISTS by_job ON event (owner, job, is_edge, number)"


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
        database.executescript(_SCHEMA + SCHEMA)
        database.execute(_INDEX)
        database.execute("SELECT count(*) FROM event").fetchone()
    except sqlite3.Error:
        database.close()
        raise
    return database
