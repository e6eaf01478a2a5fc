"""Back up, restore and upgrade a store; a backup needs no pause of the ledger."""

from pathlib import Path

import click

from lockstep_cli.options import bad_input
from lockstep_ledger.options import FILE, store_option
from lockstep_ledger.store import backup as copies
from lockstep_ledger.store import database

_NEW_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("path", metavar="FILE", type=_NEW_FILE)
@store_option
def backup(*, path: Path, store: str) -> None:
    """Write the store into FILE, also while the ledger runs; FILE is an SQLite store."""
    with (
        bad_input(OSError),
        database.disposing(database.open_store(store, read_only=True)) as engine,
    ):
        copies.back_up(engine, path)
    click.echo(f"{path}: {path.stat().st_size / 2**20:,.1f} MiB", err=True)


@click.command()
@click.argument("path", metavar="FILE", type=FILE)
@store_option
def restore(*, path: Path, store: str) -> None:
    """Fill an empty store from FILE; counters are served from 0 on, as after any reset."""
    with bad_input(OSError):
        copies.restore(path, store)
    click.echo("the store is restored; start the ledger", err=True)


@click.command()
@store_option
@click.option(
    "--backup",
    "path",
    type=_NEW_FILE,
    help="File of the backup before; by default ledger-REVISION.backup beside an SQLite store, "
    "else in this folder.",
)
def upgrade(*, store: str, path: Path | None) -> None:
    """Bring the tables of a store up to date, with a backup before; stop the ledger first."""
    with (
        bad_input(OSError),
        database.disposing(database.new_engine(database.store_url(store))) as engine,
        database.writer_lock(engine),
    ):
        current, newest = database.list_revisions(engine)
        name = "-".join(sorted(current))
        if current == newest:
            click.echo(f"the store is up to date ({name})", err=True)
            return
        if current:
            is_file = engine.dialect.name == "sqlite"
            folder = Path(str(engine.url.database)).parent if is_file else Path()
            path = path or folder / f"ledger-{name}.backup"
            copies.back_up(engine, path)
            click.echo(f"the store as it was is in {path}", err=True)
        database.migrate(engine, is_locked=True)
    click.echo(f"upgraded from {name or 'nothing'} to {'-'.join(sorted(newest))}", err=True)
