"""Files that the ledger imports: its own events, Slurm's accounting, logs."""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import tzinfo
from pathlib import Path
from typing import Any, Literal, get_args

from lockstep_ledger.importers.mlperf import read_mlperf
from lockstep_ledger.importers.sacct import read_sacct

Source = Literal["events", "sacct", "logs"]
SOURCES: tuple[Source, ...] = get_args(Source)
Document = dict[str, Any]


def read_documents(
    source: Source,
    files: Iterable[Path],
    *,
    zone: tzinfo,
    warn: Callable[[str], None],
) -> Iterator[Document]:
    """The events of files of a source, as documents for a delivery; sacct's times are in ``zone``.

    Raises:
        ValueError: a file is none of the source; the text names it.
    """
    for path in files:
        if source == "events":
            yield from _read_lines(path)
            continue
        try:
            with path.open("rb") as file:
                is_table = source == "sacct"
                events = read_sacct(file, zone=zone, warn=warn) if is_table else read_mlperf(path)
                for event in events:
                    yield event.document()
        except (ValueError, OSError) as error:
            raise ValueError(f"{path}: {error}") from error


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
