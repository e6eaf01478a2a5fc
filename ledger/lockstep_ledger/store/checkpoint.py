"""Moves SQLite's write-ahead log into its file beside the writer, so that no commit waits."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25


@contextmanager
def checkpoint_beside(engine: Engine) -> Iterator[None]:
    """Copies what was committed into the file during the block, four times a second at most.

    A commit does the rest itself once the log has its full length; then little is left to copy.
    With PostgreSQL there is nothing to do.
    """
    if engine.dialect.name != "sqlite":
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_copy, args=(engine, stop), name="checkpoints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _copy(engine: Engine, stop: threading.Event) -> None:
    wal, last_write_ns = Path(f"{engine.url.database}-wal"), 0
    while not stop.wait(_TICK_SECONDS):
        try:
            write_ns = wal.stat().st_mtime_ns
            if write_ns != last_write_ns:
                last_write_ns = write_ns
                with engine.connect() as connection:
                    connection.execute(text("PRAGMA wal_checkpoint(PASSIVE)"))
        except (OSError, SQLAlchemyError) as error:
            # The commits do it themselves then, a little more slowly.
            _log.warning("checkpoint=failed reason=%r", str(error).partition("\n")[0])
            return
