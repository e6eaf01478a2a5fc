"""Deliver refused events again: the ledger's dead letters, or those of a node's spool."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Engine

from lockstep_catalogue.ledger import REFUSALS
from lockstep_ledger.commands.import_events import poster, report
from lockstep_ledger.ingest.document import VERSION, DeliveryError, read_delivery
from lockstep_ledger.options import FILE, store_option
from lockstep_ledger.store import letters
from lockstep_ledger.store.database import StoreError, open_store, writer_lock
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter
from lockstep_records.delivery.refused import requeue
from lockstep_records.shared.token_files import read_token

Document = dict[str, Any]
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
@click.option("--url", help="Deliver to the ledger that runs, such as http://127.0.0.1:9450.")
@click.option(
    "--token-file", type=FILE, help="File whose first line is a writer's token, for --url."
)
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
    try:
        if spool is not None:
            click.echo(f"{requeue(spool, ids)} events of {spool} wait for delivery again", err=True)
            return
        with _sender(store, url, read_token(token_file) if token_file else "") as (engine, send):
            counts, reasons = _replay(engine, send, refusals, ids)
    except (StoreError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    report(counts, reasons)


@contextmanager
def _sender(
    store: str, url: str | None, token: str
) -> Iterator[tuple[Engine, Callable[[bytes], Document]]]:
    """The store with the letters, and what delivers: to the ledger that runs, or to the store."""
    engine = open_store(store, read_only=url is not None)
    try:
        if url is not None:
            yield engine, poster(url, token)
            return
        with writer_lock(engine):
            writer = StoreWriter(engine)

            def write(body: bytes) -> Document:
                delivery = read_delivery(body, time.time())
                submission = Submission(delivery.events, list(delivery.refused), "replay")
                writer.write([submission])
                rejected = [{"id": r.id, "reason": r.reason} for r in submission.refused]
                return {
                    "stored": submission.stored,
                    "duplicates": submission.duplicates,
                    "rejected": rejected,
                }

            yield engine, write
    finally:
        engine.dispose()


def _replay(
    engine: Engine,
    send: Callable[[bytes], Document],
    refusals: tuple[str, ...],
    ids: tuple[str, ...],
) -> tuple[Counter[str], list[str]]:
    """Sends the letters of each origin together; counts by what became of them, and reasons."""
    counts: Counter[str] = Counter(stored=0, duplicates=0, refused=0)
    reasons: list[str] = []
    by_origin: dict[_Origin, list[tuple[int, Document]]] = defaultdict(list)
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


def _body(origin: _Origin, events: list[Document]) -> bytes:
    message = {"version": VERSION, "cluster": origin[0], "node": origin[1], "events": events}
    return json.dumps(message).encode()
