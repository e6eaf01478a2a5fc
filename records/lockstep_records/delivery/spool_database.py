"""The database of a spool: its tables, those of an earlier version, and what is done without it."""

import logging
import sqlite3
from pathlib import Path

from lockstep_records.delivery import refused

_log = logging.getLogger(__name__)
_MODE = 0o600  # events name users and hosts
_SCHEMA = """
CREATE TABLE IF NOT EXISTS event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, is_edge INTEGER NOT NULL, text TEXT NOT NULL,
    owner INTEGER NOT NULL DEFAULT -1, job TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS position (
    job TEXT PRIMARY KEY, inode INTEGER NOT NULL, byte INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS launcher (job TEXT PRIMARY KEY, number INTEGER NOT NULL);
-- An earlier version read these files, whose launchers it did not number.
INSERT OR IGNORE INTO launcher SELECT job, 1 FROM position;
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
                refused.move_aside(path)
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
        database.executescript(_SCHEMA + refused.SCHEMA)
        columns = {row[1] for row in database.execute("PRAGMA table_info(event)")}
        for column in ("owner INTEGER NOT NULL DEFAULT -1", "job TEXT NOT NULL DEFAULT ''"):
            if column.split()[0] not in columns:  # a spool of an earlier version
                database.execute(f"ALTER TABLE event ADD COLUMN {column}")
        database.execute(_INDEX)
        database.execute("SELECT count(*) FROM event").fetchone()
    except sqlite3.Error:
        database.close()
        raise
    return database
