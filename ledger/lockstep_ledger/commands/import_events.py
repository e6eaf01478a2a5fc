"""Import events of files, or refused ones again: into a store, or a ledger that runs."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import tzinfo
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import click
import httpx
import msgspec
from sqlalchemy import Engine

from lockstep_catalogue.ledger import REFUSALS
from lockstep_cli.options import bad_input, option, timezone_option
from lockstep_ledger.importers.sacct import read_sacct
from lockstep_ledger.importers.scheduler_events import read_mlperf
from lockstep_ledger.ingest.document import VERSION, DeliveryError, read_delivery
from lockstep_ledger.ingest.speakers import SPEAKER, Speaker
from lockstep_ledger.options import FILE, LABEL_VALUE, store_option
from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store.database import disposing, open_store, writer_lock
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter
from lockstep_ledger.tables import print_table
from lockstep_outcomes.slurm import Partition, read_partitions
from lockstep_records.delivery.spool import requeue
from lockstep_records.file_access.token_files import read_token
from lockstep_records.text.documents import decode_json
from lockstep_records.text.printable import printable

Source = Literal["events", "sacct", "logs"]
SOURCES: tuple[Source, ...] = get_args(Source)
Document = dict[str, Any]


def read_documents(
    source: Source,
    files: Iterable[Path],
    cluster: str,
    *,
    zone: tzinfo,
    warn: Callable[[str], None],
) -> Iterator[Document]:
    """Events of files of a source, sacct's times in ``zone``; a ValueError names the file."""
    of_sinfo = {path: _read_sinfo(path) for path in files} if source == "sacct" else {}
    partitions = {name: each for table in of_sinfo.values() for name, each in table.items()}
    for path in files:
        if of_sinfo.get(path):
            continue
        if source == "events":
            yield from _read_lines(path)
            continue
        try:
            with path.open("rb") as file:
                events = (
                    read_sacct(file, cluster, zone=zone, warn=warn, partitions=partitions)
                    if source == "sacct"
                    else read_mlperf(path, cluster)
                )
                for event in events:
                    yield event.document()
        except (ValueError, OSError) as error:
            raise ValueError(f"{path}: {error}") from error


def _read_sinfo(path: Path) -> dict[str, Partition]:
    """Partitions of a table of sinfo; none where the file is another one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        header = file.readline(200)
        return read_partitions([header, *file]) if header.startswith("PARTITION|") else {}


def _read_lines(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                document = decode_json(line)
                json.dumps(document, allow_nan=False)  # JSON has no 1e999
            except ValueError as error:
                raise ValueError(f"{path} line {number}: {error}; give one event a line") from error
            yield document


Send = Callable[..., Document]
"""Takes the body of a delivery, and where it stores itself its speaker; gives the answer."""
_BATCH = 500
_TIMEOUT_SECONDS = 30.0
_RETRIES = 5
_SHOWN_REFUSALS = 10
_TOO_MANY = frozenset({429})


def running_ledger_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds ``--url`` and ``--token-file``."""
    token = click.option(
        "--token-file", type=FILE, help="File whose first line is a writer's token, for --url."
    )
    url = click.option("--url", help="Deliver to a ledger that runs: http://127.0.0.1:9450.")
    return url(token(command))


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=FILE)
@store_option
@option("--cluster", type=LABEL_VALUE, default="local", help="Cluster of events that name none.")
@running_ledger_options
@option(
    "--from",
    "source",
    type=click.Choice(SOURCES),
    default="events",
    help="Format of the files: events.jsonl, sacct --parsable (beside sinfo's), or logs of jobs.",
)
@timezone_option("Time zone in which sacct printed its times.")
def import_events(
    *,
    files: tuple[Path, ...],
    store: str,
    cluster: str,
    url: str | None,
    token_file: Path | None,
    source: Source,
    zone: ZoneInfo,
) -> None:
    """Import files of past events; what is stored already counts once."""
    with bad_input():
        documents = read_documents(source, files, cluster, zone=zone, warn=warn)
        if url is not None:
            counts, reasons = deliver(documents, cluster, poster(url, token_file))
        else:
            with disposing(open_store(store)) as engine, storing(engine, "import") as send:
                counts, reasons = deliver(documents, cluster, send)
    report(counts, reasons)


def warn(sentence: str) -> None:
    """Prints what was left out or may be wrong."""
    click.echo(printable(sentence), err=True)


def report(counts: Counter[str], reasons: list[str]) -> None:
    """Prints what became of events, and why some were refused."""
    print_table("Imported", ("events", "number"), list(counts.items()))
    for reason in reasons[:_SHOWN_REFUSALS]:
        warn(f"refused: {reason}")


@contextmanager
def storing(engine: Engine, client: str) -> Iterator[Send]:
    """What stores a delivery without a ledger that runs, as of a client of this name."""
    with writer_lock(engine):
        writer = StoreWriter(engine)

        def write(body: bytes, speaker: Speaker | None = None) -> Document:
            speakers = () if speaker is None else (lambda *_: speaker,)
            delivery = read_delivery(body, time.time(), *speakers)
            refused = list(delivery.refused)
            submission = Submission(delivery.events, refused, client, delivery.speaker)
            writer.write([submission])
            return submission.answer()

        yield write


def deliver(
    documents: Iterable[Document], cluster: str, send: Send, frame: Document | None = None
) -> tuple[Counter[str], list[str]]:
    """Sends batches, and ``frame`` beside the last; counts what became of events, and refusals."""
    counts: Counter[str] = Counter(stored=0, duplicates=0, refused=0)
    reasons: list[str] = []
    remaining = iter(documents)
    batch = list(islice(remaining, _BATCH))
    while batch or frame:
        body: Document = {"version": VERSION, "cluster": cluster, "node": "", "events": batch}
        batch = list(islice(remaining, _BATCH))
        if frame and not batch:
            body, frame = body | frame, None
        answer = send(json.dumps(body).encode())
        counts["stored"] += answer["stored"]
        counts["duplicates"] += answer["duplicates"]
        counts["refused"] += len(answer["rejected"])
        reasons += [f"{entry['id']}: {entry['reason']}" for entry in answer["rejected"]]
    return counts, reasons


class UnavailableError(ValueError):
    """The ledger does not answer now; the text says why."""


def poster(url: str, token_file: Path | None) -> Send:
    """What sends a delivery to a ledger that runs.

    It raises UnavailableError without an answer, and ValueError with one that is a refusal.
    """
    headers = {"Content-Type": "application/json"}
    if token_file is not None:
        headers["Authorization"] = f"Bearer {read_token(token_file)}"
    trust = httpx.create_ssl_context()  # reading the certificates takes longer than a request

    def post(body: bytes, _speaker: Speaker | None = None) -> Document:
        for attempt in range(_RETRIES):
            try:
                answer = httpx.post(
                    f"{url.rstrip('/')}/api/events", content=body, headers=headers,
                    timeout=_TIMEOUT_SECONDS, verify=trust,
                )  # fmt: skip
            except (httpx.NetworkError, httpx.TimeoutException, httpx.ProtocolError) as error:
                raise UnavailableError(f"--url {url} does not answer: {error}") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise ValueError(f"--url {url} does not answer: {error}") from error
            if answer.status_code not in {429, 503}:
                break
            time.sleep(2.0**attempt)
        if answer.is_server_error or answer.status_code in _TOO_MANY:
            raise UnavailableError(f"--url {url} answers {answer.status_code}")
        if answer.status_code not in {200, 422}:
            raise ValueError(f"--url {url} answers {answer.status_code}: {answer.text[:200]}")
        document: Document = answer.json()
        return document

    return post


_LETTER_BATCH = 100
_Origin = tuple[str, str, str]
"""Cluster, node and speaker as JSON; letters of earlier versions have none."""


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
@running_ledger_options
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
            sender = nullcontext(poster(url, token_file)) if url else storing(engine, "replay")
            with sender as send:
                counts, reasons = _replay(engine, send, refusals, ids)
    report(counts, reasons)


def _replay(
    engine: Engine, send: Send, refusals: tuple[str, ...], ids: tuple[str, ...]
) -> tuple[Counter[str], list[str]]:
    """Sends the letters of each origin, as of their speaker; counts by what became of them."""
    counts: Counter[str] = Counter(stored=0, duplicates=0, refused=0)
    reasons: list[str] = []
    by_origin: dict[_Origin, list[tuple[int, Document]]] = defaultdict(list)
    with engine.connect() as connection:
        for number, document in letters.read_events(connection, refusals, ids):
            signature = json.dumps(document.pop(SPEAKER, None))
            cluster, node = (str(document.get(name) or "") for name in ("cluster", "node"))
            by_origin[cluster or "local", node, signature].append((number, document))
    for origin, entries in by_origin.items():
        speaker = msgspec.json.decode(origin[2], type=Speaker | None)
        for start in range(0, len(entries), _LETTER_BATCH):
            batch = entries[start : start + _LETTER_BATCH]
            try:
                answer = send(_body(origin, [document for _, document in batch]), speaker)
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
