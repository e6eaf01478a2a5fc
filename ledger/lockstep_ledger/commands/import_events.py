"""Import events from files: into the store, or into a ledger that runs."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
import httpx

from lockstep_ledger.ingest.document import VERSION, read_delivery
from lockstep_ledger.options import FILE, check_name, store_option
from lockstep_ledger.store.database import StoreError, open_store, writer_lock
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter
from lockstep_ledger.tables import print_table
from lockstep_ledger.web.access import read_tokens

Document = dict[str, Any]
_BATCH = 500
_TIMEOUT_SECONDS = 30.0
_RETRIES = 5
_SHOWN_REFUSALS = 10


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=FILE)
@store_option
@click.option(
    "--cluster",
    default="local",
    show_default=True,
    callback=check_name,
    help="Cluster of events that name none.",
)
@click.option("--url", help="Deliver to a ledger that runs, such as http://127.0.0.1:9450.")
@click.option(
    "--token-file", type=FILE, help="File whose first line is a writer's token, for --url."
)
def import_events(
    *, files: tuple[Path, ...], store: str, cluster: str, url: str | None, token_file: Path | None
) -> None:
    """Import events.jsonl files; what is stored already counts once."""
    documents = _read_lines(files)
    try:
        token = read_tokens(token_file)[0] if token_file else ""
        if url is not None:
            counts, reasons = _deliver(documents, cluster, _poster(url, token))
        else:
            counts, reasons = _import(documents, cluster, store)
    except (StoreError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    print_table("Imported", ("events", "number"), list(counts.items()))
    for reason in reasons[:_SHOWN_REFUSALS]:
        click.echo(f"refused: {reason}", err=True)


def _read_lines(files: Iterable[Path]) -> Iterator[Document]:
    for path in files:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    document = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ValueError(
                        f"{path} line {number} is no JSON; give one event a line"
                    ) from error
                yield document


def _import(
    documents: Iterable[Document], cluster: str, store: str
) -> tuple[Counter[str], list[str]]:
    engine = open_store(store)
    try:
        with writer_lock(engine):
            writer = StoreWriter(engine)

            def write(body: bytes) -> Document:
                delivery = read_delivery(body, time.time())
                submission = Submission(delivery.events, list(delivery.refused), "import")
                writer.write([submission])
                rejected = [{"id": r.id, "reason": r.reason} for r in submission.refused]
                return {
                    "stored": submission.stored,
                    "duplicates": submission.duplicates,
                    "rejected": rejected,
                }

            return _deliver(documents, cluster, write)
    finally:
        engine.dispose()


def _deliver(
    documents: Iterable[Document], cluster: str, send: Callable[[bytes], Document]
) -> tuple[Counter[str], list[str]]:
    """Sends everything in batches; returns counts by what became of events, and the refusals."""
    counts: Counter[str] = Counter(stored=0, duplicates=0, refused=0)
    reasons: list[str] = []
    remaining = iter(documents)
    while batch := list(islice(remaining, _BATCH)):
        body = {"version": VERSION, "cluster": cluster, "node": "", "events": batch}
        answer = send(json.dumps(body).encode())
        counts["stored"] += answer["stored"]
        counts["duplicates"] += answer["duplicates"]
        counts["refused"] += len(answer["rejected"])
        reasons += [f"{entry['id']}: {entry['reason']}" for entry in answer["rejected"]]
    return counts, reasons


def _poster(url: str, token: str) -> Callable[[bytes], Document]:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"

    def post(body: bytes) -> Document:
        for attempt in range(_RETRIES):
            try:
                answer = httpx.post(
                    f"{url.rstrip('/')}/api/events", content=body, headers=headers,
                    timeout=_TIMEOUT_SECONDS,
                )  # fmt: skip
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise ValueError(f"--url {url} does not answer: {error}") from error
            if answer.status_code not in {429, 503}:
                break
            time.sleep(2.0**attempt)
        if answer.status_code not in {200, 422}:
            raise ValueError(f"--url {url} answers {answer.status_code}: {answer.text[:200]}")
        document: Document = answer.json()
        return document

    return post
