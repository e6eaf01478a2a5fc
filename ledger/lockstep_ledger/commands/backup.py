"""Back up and restore a store; a backup needs no pause of the ledger."""

from pathlib import Path

import click

from lockstep_cli.options import bad_input
from lockstep_ledger.options import FILE, store_option
from lockstep_ledger.store import backup as copies
from lockstep_ledger.store import database


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
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
