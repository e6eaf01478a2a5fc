"""Moves SQLite's write-ahead log into its file beside the writer, so that no commit waits."""

import logging
import threading
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25


class Checkpointer:
    """Copies what was committed into the file, four times a second, where anything was.

    A commit does the rest itself once the log has its full length; then little is left to copy.
    With PostgreSQL there is nothing to do.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_needed = engine.dialect.name == "sqlite"
        self._wal = Path(f"{engine.url.database}-wal")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        if self._is_needed:
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._is_needed:
            self._thread.join()

    def _run(self) -> None:
        last_write_ns = 0
        while not self._stop.wait(_TICK_SECONDS):
            try:
                write_ns = self._wal.stat().st_mtime_ns
                if write_ns != last_write_ns:
                    last_write_ns = write_ns
                    with self._engine.connect() as connection:
                        connection.execute(text("PRAGMA wal_checkpoint(PASSIVE)"))
            except (OSError, SQLAlchemyError) as error:
                # The commits do it themselves then, a little more slowly.
                _log.warning("checkpoint=failed reason=%r", str(error).partition("\n")[0])
                return
