"""Opens the store: SQLite by path, PostgreSQL by its address; migrates it and locks it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from lockstep_records.shared.secret_patterns import mask_secrets

_BUSY_SECONDS = 30.0
_CACHE_KIBIBYTES = 65_536
# Of 4 KiB; a thread of its own moves them into the file before a commit has to (checkpoint.py).
_WAL_PAGES = 16_384
# Any number; it names the ledger's writer among the advisory locks of a PostgreSQL database.
_WRITER_LOCK = 0x4C4F434B


class StoreError(ValueError):
    """The store cannot be opened; the text says which and why."""


def store_url(dsn: str) -> URL:
    """Address of a store: a path or ``sqlite:///PATH``, or ``postgresql://...``.

    Raises:
        StoreError: it is neither.
    """
    if "://" not in dsn:
        return URL.create("sqlite", database=str(Path(dsn)))
    # Never the text itself: what cannot be parsed may hold a password anywhere.
    refusal = StoreError(
        "store: the value is not an address; give a path, or postgresql://USER:PASSWORD@HOST/NAME"
        " with %40, %3A and %2F for @, : and / in the password"
    )
    try:
        url = make_url(dsn)
    except (ArgumentError, ValueError):
        raise refusal from None
    if "@" in (url.host or ""):
        raise refusal
    backend = url.get_backend_name()
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite" or not url.database:
        raise StoreError(f"store {backend}://... must be a path of SQLite or postgresql://...")
    return url


def open_store(dsn: str, *, read_only: bool = False) -> Engine:
    """Opens the store and brings its tables up to date.

    Args:
        dsn: as for ``store_url``.
        read_only: changes nothing; the store must be there already.

    Raises:
        StoreError: it cannot be opened.
    """
    url = store_url(dsn)
    if url.get_backend_name() == "sqlite" and read_only and not Path(str(url.database)).is_file():
        raise StoreError(f"store {url.database} is not a file; start lockstep ledger serve first")
    engine = _engine(url)
    try:
        if not read_only:
            migrate(engine)
        with engine.connect() as connection:
            connection.execute(text("SELECT count(*) FROM counters"))
    except SQLAlchemyError as error:
        engine.dispose()
        address = mask_secrets(url.render_as_string(hide_password=True))
        cause = mask_secrets(str(getattr(error, "orig", error)).strip().partition("\n")[0])
        raise StoreError(f"store {address} cannot be opened: {cause}") from error
    return engine


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, pool_size=8)
    engine = create_engine(
        url,
        poolclass=QueuePool,
        connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        # FULL: an answered event survives a power cut, not only a killed process.
        for setting in (
            "journal_mode=WAL",
            "synchronous=FULL",
            f"cache_size=-{_CACHE_KIBIBYTES}",
            "temp_store=MEMORY",
            f"wal_autocheckpoint={_WAL_PAGES}",
        ):
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    return engine


def migrate(engine: Engine) -> None:
    """Runs the steps that the store's tables lack."""
    with as_file(files("lockstep_ledger") / "migrations") as folder, engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@contextmanager
def writer_lock(engine: Engine) -> Iterator[None]:
    """Holds the store for this process: two writers would count events twice.

    Raises:
        StoreError: another ledger writes to this store.
    """
    refusal = StoreError(f"store {engine.url!r} has a running ledger; stop it first")
    if engine.dialect.name == "sqlite":
        descriptor = os.open(f"{engine.url.database}.lock", os.O_RDWR | os.O_CREAT, 0o640)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise refusal from error
            yield
        finally:
            os.close(descriptor)
        return
    with engine.connect() as connection:
        # The lock is the session's: the end of the connection releases it, back in the pool it
        # would go on.
        connection.detach()
        question = text("SELECT pg_try_advisory_lock(:lock)")
        if not connection.execute(question, {"lock": _WRITER_LOCK}).scalar():
            raise refusal
        connection.commit()
        yield
