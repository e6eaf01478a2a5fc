"""Export jobs or events to Parquet."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Connection, select
from sqlalchemy.types import BigInteger, Boolean, Double, Integer

from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_ledger.commands.inspect import reading
from lockstep_ledger.options import store_option
from lockstep_ledger.store.tables import events, jobs

_ROWS = 50_000
_TABLES = {"jobs": jobs, "events": events}


@click.command()
@click.argument("what", type=click.Choice(tuple(_TABLES)))
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@store_option
def export(*, what: str, path: Path, store: str) -> None:
    """Write all jobs or events to a Parquet file; GPU time has a column for each state."""
    if not path.parent.is_dir():
        raise click.UsageError(f"folder {path.parent} does not exist; create it first")
    if path.exists() and not path.is_file():
        raise click.UsageError(f"{path} is a device or a pipe; give the name of a file")
    with reading(store) as connection:
        num_rows = _write(connection, what, path)
    click.echo(f"{num_rows} {what} in {path}", err=True)


def _write(connection: Connection, what: str, path: Path) -> int:
    schema, num_rows = _schema(what), 0
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        temporary = Path(folder, path.name)
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for rows in _batches(connection, what):
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                num_rows += len(rows)
        temporary.chmod(0o600)  # all users are in it
        temporary.replace(path)
    return num_rows


def _schema(what: str) -> Any:
    types = {Double: pa.float64(), Boolean: pa.bool_(), BigInteger: pa.int64(), Integer: pa.int64()}
    fields = [
        pa.field(column.name, types.get(type(column.type), pa.string()), nullable=column.nullable)
        for column in _TABLES[what].c
        if column.name not in {"state", "facts"}
    ]
    if what == "jobs":
        fields += [pa.field(f"{state}_gpu_seconds", pa.float64()) for state in GOODPUT_STATES]
    return pa.schema(fields)


def _batches(connection: Connection, what: str) -> Iterator[list[dict[str, Any]]]:
    table = _TABLES[what]
    query = select(table).order_by(next(iter(table.primary_key)))
    result = connection.execution_options(yield_per=_ROWS).execute(query)
    for partition in result.mappings().partitions(_ROWS):
        rows = [dict(row) for row in partition]
        for row in rows if what == "jobs" else ():
            del row["facts"]
            row["costs"] = json.dumps(row["costs"])
            goodput = json.loads(row.pop("state"))["goodput"]
            row.update(
                {f"{state}_gpu_seconds": goodput.get(state, 0.0) for state in GOODPUT_STATES}
            )
        yield rows
