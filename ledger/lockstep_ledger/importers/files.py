"""Files that the ledger imports: its own events, Slurm's accounting, logs, traces of nodes."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, Literal, get_args

from lockstep_ledger.importers.mlperf import read_mlperf
from lockstep_ledger.importers.node_trace import read_node_trace
from lockstep_ledger.importers.sacct import read_sacct
from lockstep_records.events.event import Event

Source = Literal["events", "sacct", "logs", "nodes"]
SOURCES: tuple[Source, ...] = get_args(Source)
Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOptions:
    """What a source does not tell itself.

    Attributes:
        zone: in which sacct printed its times.
        start_seconds: begin of a trace of nodes, seconds since 1970.
        gpus_per_node: of a trace of nodes.
        warn: gets a sentence for what is left out.
    """

    zone: tzinfo = UTC
    start_seconds: float = 0.0
    gpus_per_node: int = 1
    warn: Callable[[str], None] = lambda _: None


def read_documents(
    source: Source, files: Iterable[Path], options: ImportOptions
) -> Iterator[Document]:
    """The events of files, as documents for a delivery.

    Raises:
        ValueError: a file is none of the source; the text names it.
    """
    for path in files:
        if source == "events":
            yield from _read_lines(path)
            continue
        try:
            for event in _read(source, path, options):
                yield event.document()
        except (ValueError, OSError) as error:
            raise ValueError(f"{path}: {error}") from error


def _read(source: Source, path: Path, options: ImportOptions) -> Iterator[Event]:
    if source == "logs":
        yield from read_mlperf(path)
    elif source == "sacct":
        with path.open("rb") as table:
            yield from read_sacct(table, zone=options.zone, warn=options.warn)
    else:
        with path.open(encoding="utf-8", errors="replace") as trace:
            yield from read_node_trace(
                trace,
                start_seconds=options.start_seconds,
                gpus_per_node=options.gpus_per_node,
            )


def _read_lines(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                document = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{path} line {number} is not JSON; give one event a line"
                ) from error
            yield document
