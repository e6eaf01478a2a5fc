"""Deliver refused events again: the ledger's dead letters, or those of a node's spool."""

import json
from collections import Counter, defaultdict
from contextlib import nullcontext
from pathlib import Path

import click
from sqlalchemy import Engine

from lockstep_catalogue.ledger import REFUSALS
from lockstep_cli.options import bad_input
from lockstep_ledger.commands import import_events
from lockstep_ledger.ingest.document import VERSION, DeliveryError
from lockstep_ledger.options import store_option
from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store.database import disposing, open_store
from lockstep_records.delivery.spool_database import requeue

_BATCH = 100
_Origin = tuple[str, str]


@click.command()
@store_option
@click.option(
    "--refusal",
    "refusals",
    multiple=True,
    type=click.Choice(REFUSALS),
    help="Only what was refused for this reason; repeatable.",
)
@click.option("--id", "ids", multiple=True, help="Only the event of this id; repeatable.")
@import_events.running_ledger_options
@click.option(
    "--spool",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Spool of a node's agent or launcher: what it keeps as refused waits for delivery again.",
)
def replay(
    *,
    store: str,
    refusals: tuple[str, ...],
    ids: tuple[str, ...],
    url: str | None,
    token_file: Path | None,
    spool: Path | None,
) -> None:
    """Deliver dead letters again; those that are stored now are removed."""
    with bad_input():
        if spool is not None:
            click.echo(f"{requeue(spool, ids)} events of {spool} wait for delivery again", err=True)
            return
        with disposing(open_store(store, read_only=url is not None)) as engine:
            sender = (
                nullcontext(import_events.poster(url, token_file))
                if url
                else import_events.storing(engine, "replay")
            )
            with sender as send:
                counts, reasons = _replay(engine, send, refusals, ids)
    import_events.report(counts, reasons)


def _replay(
    engine: Engine,
    send: import_events.Send,
    refusals: tuple[str, ...],
    ids: tuple[str, ...],
) -> tuple[Counter[str], list[str]]:
    """Sends the letters of each origin together; counts by what became of them, and reasons."""
    counts: Counter[str] = Counter(stored=0, duplicates=0, refused=0)
    reasons: list[str] = []
    by_origin: dict[_Origin, list[tuple[int, import_events.Document]]] = defaultdict(list)
    with engine.connect() as connection:
        for number, document in letters.read_events(connection, refusals, ids):
            origin = (str(document.get("cluster") or "local"), str(document.get("node") or ""))
            by_origin[origin].append((number, document))
    for origin, entries in by_origin.items():
        for start in range(0, len(entries), _BATCH):
            batch = entries[start : start + _BATCH]
            try:
                answer = send(_body(origin, [document for _, document in batch]))
            except DeliveryError as error:
                reasons.append(f"{origin[1]}: {error}")
                continue
            counts.update({name: answer[name] for name in ("stored", "duplicates")})
            counts["refused"] += len(answer["rejected"])
            reasons += [f"{entry['id']}: {entry['reason']}" for entry in answer["rejected"]]
            rejected = {entry["id"] for entry in answer["rejected"]}
            stored = [number for number, event in batch if event.get("id") not in rejected]
            with engine.begin() as connection:
                letters.remove(connection, stored)
    return counts, reasons


def _body(origin: _Origin, events: list[import_events.Document]) -> bytes:
    message = {"version": VERSION, "cluster": origin[0], "node": origin[1], "events": events}
    return json.dumps(message).encode()
