"""Copies a store into a file and back; the file is an SQLite store, whatever the store is."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import click
import sqlalchemy as sa

from lockstep_cli.options import bad_input
from lockstep_ledger.options import FILE, store_option
from lockstep_ledger.store.database import (
    OTHER_VERSION,
    StoreError,
    disposing,
    explained,
    new_engine,
    open_store,
    read_version,
    store_url,
    writer_lock,
)
from lockstep_ledger.store.tables import VERSION, counter_bases, counters, metadata


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@store_option
def backup(*, path: Path, store: str) -> None:
    """Write the store into FILE, also while the ledger runs; FILE is an SQLite store."""
    with bad_input(OSError), disposing(open_store(store, read_only=True)) as engine:
        back_up(engine, path)
    click.echo(f"{path}: {path.stat().st_size / 2**20:,.1f} MiB", err=True)


@click.command()
@click.argument("path", metavar="FILE", type=FILE)
@store_option
def restore(*, path: Path, store: str) -> None:
    """Fill an empty store from FILE; counters are served from 0 on, as after any reset."""
    with bad_input(OSError):
        restore_store(path, store)
    click.echo("the store is restored; start the ledger", err=True)


_ROWS = 5000


def back_up(engine: sa.Engine, path: Path) -> None:
    """Writes a store into a file, which is there when all of it is; or StoreError."""
    if path.exists():
        raise StoreError(f"file {path} is there already; choose another name")
    if not path.parent.is_dir():
        raise StoreError(f"folder {path.parent} does not exist; create it first")
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder, explained(engine):
        temporary = Path(folder, "copy.db")
        with disposing(new_engine(store_url(str(temporary)))) as target:
            _copy(engine, target)
        with closing(sqlite3.connect(temporary)) as copied:
            copied.execute("PRAGMA journal_mode=DELETE")
            [finding] = copied.execute("PRAGMA quick_check(1)").fetchone()
        if finding != "ok":
            raise StoreError(f"the copy in {path.parent} is damaged ({finding}); check the disk")
        temporary.chmod(0o600)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)


def restore_store(path: Path, dsn: str) -> None:
    """Fills an empty store from a file of ``back_up``; StoreError where one of them is another.

    Its counters are served from 0 on: increase() takes every fall for a fall to 0.
    """
    url = f"sqlite:///file:{quote(str(path))}?mode=ro&uri=true"
    with (
        disposing(sa.create_engine(url)) as source,
        disposing(new_engine(store_url(dsn))) as target,
    ):
        with explained(source):
            version = read_version(source)
        if version is None:
            raise StoreError(f"file {path} holds no ledger; give one of lockstep ledger backup")
        if version != VERSION:
            raise StoreError(OTHER_VERSION)
        with writer_lock(target), explained(target):
            if read_version(target) is not None:
                raise StoreError("the store is a ledger's; restore into a new file or database")
            _copy(source, target)
            with target.begin() as connection:
                connection.execute(sa.delete(counter_bases))
                query = sa.select(counters.c.number, counters.c.value)
                connection.execute(sa.insert(counter_bases).from_select(["counter", "base"], query))


def _copy(source: sa.Engine, target: sa.Engine) -> None:
    if source.dialect.name == target.dialect.name == "sqlite":
        with (
            closing(source.raw_connection()) as reading,
            closing(target.raw_connection()) as writing,
        ):
            assert reading.driver_connection is not None
            reading.driver_connection.backup(writing.driver_connection)
        return
    level = "REPEATABLE READ" if source.dialect.name == "postgresql" else "SERIALIZABLE"
    snapshot = source.execution_options(isolation_level=level)
    with snapshot.connect() as reading, target.begin() as writing:
        metadata.create_all(writing)
        _copy_rows(reading, writing)


def _copy_rows(reading: sa.Connection, writing: sa.Connection) -> None:
    for table in metadata.sorted_tables:
        rows = reading.execution_options(yield_per=_ROWS).execute(sa.select(table))
        for part in rows.mappings().partitions():
            writing.execute(sa.insert(table), [dict(row) for row in part])
        for column in table.c if writing.dialect.name == "postgresql" else ():
            if column.autoincrement is True:
                # What is numbered next has to be beyond what is copied.
                sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
                writing.execute(sa.select(sa.func.setval(sequence, sa.func.max(column))))
