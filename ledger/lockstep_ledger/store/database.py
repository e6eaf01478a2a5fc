"""Opens the store: SQLite by path, PostgreSQL by its address; creates its tables and locks it."""

import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Dialect,
    Engine,
    Row,
    Table,
    create_engine,
    event,
    func,
    inspect,
    select,
    text,
)  # fmt: skip
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from lockstep_ledger.store.tables import VERSION, metadata, store_version
from lockstep_records.text.secret_patterns import mask_secrets

_BUSY_SECONDS = 30.0
_CACHE_KIBIBYTES = 65_536
# Of 4 KiB; a thread of its own moves them into the file before a commit has to.
_WAL_PAGES = 16_384
# Any numbers; they name the leader, and who creates tables, among the advisory locks of PostgreSQL.
WRITER_LOCK, _CREATION_LOCK = 0x4C4F434B, 0x4C4F434C
# A connection that was cut without a word is gone after 25 s on both sides, and its locks with it.
_KEEP_ALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
_CONNECT_SECONDS = 10
_MAX_VALUES = 400  # SQLite takes 999 parameters in builds of before 2020
_Value = TypeVar("_Value")
OTHER_VERSION = "the store is of another version of the ledger; use the ledger that wrote it"


class StoreError(ValueError):
    """The store cannot be opened; the text says which and why."""


def store_url(dsn: str) -> URL:
    """Address of a store: a path, ``sqlite:///PATH`` or ``postgresql://...``; or StoreError."""
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
    """Opens the store of a ``store_url``, with its tables unless ``read_only``; or StoreError."""
    url = store_url(dsn)
    if url.get_backend_name() == "sqlite" and read_only and not Path(str(url.database)).is_file():
        raise StoreError(f"store {url.database} is not a file; start lockstep ledger serve first")
    engine = new_engine(url)
    with explained(engine):
        if url.get_backend_name() == "sqlite":
            make_private(Path(str(url.database)))
        version = read_version(engine)
        if version is None and not read_only:
            version = create_tables(engine)
    if version != VERSION:
        engine.dispose()
        raise StoreError(OTHER_VERSION)
    return engine


def make_private(path: Path) -> None:
    """Creates a file that only its user may read, as what SQLite adds beside it; or StoreError."""
    if str(path) == ":memory:":
        return
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return  # with the rights that its user gave it
    except OSError as error:
        remedy = "name a file in a folder that is there and may be written"
        raise StoreError(f"store {path} cannot be opened: {error.strerror}; {remedy}") from error


@contextmanager
def explained(engine: Engine) -> Iterator[None]:
    """Turns an error of the database into a StoreError, without the password in the address."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:  # a backup speaks to the driver itself
        engine.dispose()
        address = mask_secrets(engine.url.render_as_string(hide_password=True))
        cause = mask_secrets(str(getattr(error, "orig", error)).strip().partition("\n")[0])
        raise StoreError(f"store {address} cannot be opened: {cause}") from error


@contextmanager
def disposing(engine: Engine) -> Iterator[Engine]:
    """Closes its connections in the end."""
    try:
        yield engine
    finally:
        engine.dispose()


def new_engine(url: URL) -> Engine:
    """Connections to a store, set up for it; none is opened yet."""
    if url.get_backend_name() != "sqlite":
        arguments = connect_arguments(url)
        return create_engine(url, pool_pre_ping=True, pool_size=8, connect_args=arguments)
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


def insert_into(dialect: Dialect, table: Table) -> Any:
    """An INSERT that may say what to do on a conflict: SQLAlchemy has one for each database."""
    return (postgresql if dialect.name == "postgresql" else sqlite).insert(table)


def chunks_of(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """The values in their order, as many at a time as one statement takes."""
    for start in range(0, len(values), _MAX_VALUES):
        yield values[start : start + _MAX_VALUES]


def rows_by_name(connection: Connection, query: Any, names: Collection[str]) -> list[Row[Any]]:
    """The rows of a query for all of its ``names``, however many they are."""
    chunks = chunks_of(sorted(names))
    return [row for some in chunks for row in connection.execute(query, {"names": some}).all()]


def connect_arguments(url: URL) -> dict[str, Any]:
    """How to reach a PostgreSQL so that neither side waits for ever for one that is gone."""
    names = {name: f"tcp_{name}" for name in _KEEP_ALIVE}
    settings = " ".join(f"-c {names[name]}={value}" for name, value in _KEEP_ALIVE.items())
    options = url.query.get("options", "")
    words = options if isinstance(options, str) else " ".join(options)
    return {**_KEEP_ALIVE, "connect_timeout": _CONNECT_SECONDS, "options": f"{settings} {words}"}


def create_tables(engine: Engine) -> int:
    """Creates the tables that are missing; returns their version, which is written last."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            # Several ledgers may start at once.
            connection.execute(select(func.pg_advisory_xact_lock(_CREATION_LOCK)))
        metadata.create_all(connection)
        row = insert_into(engine.dialect, store_version).values(version=VERSION)
        connection.execute(row.on_conflict_do_nothing())
    return VERSION


def read_version(engine: Engine) -> int | None:
    """Version of the store's tables; None where they are not there, or not yet whole."""
    with engine.connect() as connection:
        if not inspect(connection).has_table(store_version.name):
            return None
        version: int | None = connection.execute(select(store_version.c.version)).scalar()
        return version


def _refusal(engine: Engine) -> StoreError:
    return StoreError(f"store {engine.url!r} has a running ledger; stop it first")


@contextmanager
def writer_lock(engine: Engine) -> Iterator[None]:
    """Holds the store for this process: two writers would count twice. StoreError if one does."""
    if engine.dialect.name == "sqlite":
        descriptor = os.open(f"{engine.url.database}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _refusal(engine) from error
            yield
        finally:
            os.close(descriptor)
        return
    with engine.connect() as connection:
        # The lock is the session's: the end of the connection releases it, back in the pool it
        # would go on.
        connection.detach()
        question = text("SELECT pg_try_advisory_lock(:lock)")
        if not connection.execute(question, {"lock": WRITER_LOCK}).scalar():
            raise _refusal(engine)
        connection.commit()
        yield


_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25


@contextmanager
def checkpoint_beside(engine: Engine) -> Iterator[None]:
    """Copies what was committed into SQLite's file during the block, four times a second at most.

    A commit does the rest itself once the log has its full length; then little is left to copy.
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
