"""Writes what is finished of a job into an archive, as columns.

A stretch is a fixed number of rows of each rank of a node; a file that is written a second time,
after a writer was killed, is the same file. The manifest comes last, so it names what is there.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.archive.manifest import (
    EVENTS,
    MANIFEST,
    RANKS,
    AttemptPart,
    Manifest,
    Stretch,
    TableName,
    decode_manifest,
    table_name,
)
from lockstep_records.archive.tables import GROUP_ROWS, make_table, write_table
from lockstep_records.events.event import FILE_NAME, MAX_EVENTS_BYTES
from lockstep_records.file_access.foreign_files import read_foreign
from lockstep_records.files.jobs import fit_job_id, list_attempts, list_pages
from lockstep_records.files.last_output import ERROR_SUFFIX, OUTPUT_SUFFIX
from lockstep_records.files.operations import OPERATION, operations_path, read_operations
from lockstep_records.page import reader
from lockstep_records.page.layout import ROW

STRETCH_ROWS = 4096
"""Most rows of each rank in a file; a sixteenth of the default ring."""
_MAX_PAGES = 1 << 14
_QUIET_SECONDS = 60.0
"""How long after the last rank's end an attempt is over where no launcher says so."""
_MAX_SIDE_BYTES = 256 << 10
SIDE_FILES = {"stderr": OUTPUT_SUFFIX, "error": ERROR_SUFFIX}
"""Columns of the table of ranks that hold what a rank said last, with the suffix of its file."""


class Store(NamedTuple):
    """A folder of jobs in an archive; ``get`` raises FileNotFoundError."""

    get: Callable[[str], bytes]
    put: Callable[[str, bytes], None]


class _Rank(NamedTuple):
    page: reader.Page
    head: reader.PageHead


class ColumnWriter:
    """Packs the attempts of a job; what it has written stands in the manifests of the store.

    The store is written to under ``JOB_ID/nodes/NODE/``; ``take`` is called with the bytes of files
    before these are read, and may raise OSError.
    """

    def __init__(
        self, job: Path, store: Store, take: Callable[[int], None] = lambda _: None
    ) -> None:
        self._job, self._store, self._take = job, store, take
        self._manifests: dict[str, Manifest] = {}
        self._complete: set[Path] = set()
        self._events: bytes | None = None
        self.packed: set[Path] = set()

    def pack(self, owner: int, *, is_over: bool) -> None:
        """Writes the stretches that are finished; what was written before an OSError counts."""
        attempts = list_attempts(self._job)
        for attempt in attempts:
            if attempt in self._complete:
                continue
            nodes = _ranks_by_node(attempt, owner)
            has_ended = is_over or attempt != attempts[-1] or _is_quiet(nodes)
            for node, ranks in nodes.items():
                self._pack_node(node, attempt, ranks, has_ended=has_ended)
                if has_ended:
                    suffixes = (".page", *SIDE_FILES.values())
                    paths = [rank.page.path for rank in ranks]
                    self.packed.update(path.with_suffix(end) for path in paths for end in suffixes)
            if has_ended:
                self._complete.add(attempt)
                self._put_events(min(nodes, default=None))

    def _put_events(self, node: str | None) -> None:
        """The events of this folder; other nodes of the job have their own."""
        events = _side_file(self._job / FILE_NAME, MAX_EVENTS_BYTES)
        if node is not None and events is not None and events != self._events:
            self._store.put(f"{self._job.name}/nodes/{node}/{EVENTS}", events)
            self._save(msgspec.structs.replace(self._manifest(node), has_events=True))
            self._events = events

    def _pack_node(self, node: str, attempt: Path, ranks: list[_Rank], *, has_ended: bool) -> None:
        manifest = self._manifest(node)
        part = manifest.attempts.get(attempt.name)
        part = part or AttemptPart(world_size=ranks[0].page.identity["world_size"])
        folder = f"{self._job.name}/nodes/{node}/{attempt.name}"
        pages = [rank.page for rank in ranks]
        while not part.is_complete and (span := _next_span(pages, part.end_row, has_ended)):
            self._take(len(pages) * len(span) * ROW.size)
            part = self._write_stretch(folder, part, pages, span)
            # Of a node that dies this is all that tells whose rows these are.
            self._write_ranks(folder, ranks)
            self._save(manifest := _with_part(manifest, attempt.name, part))
        if has_ended and not part.is_complete:
            self._write_ranks(folder, ranks)
            numbers = tuple(sorted({page.identity["rank"] for page in pages}))
            part = msgspec.structs.replace(part, is_complete=True, ranks=numbers)
            self._save(_with_part(manifest, attempt.name, part))

    def _manifest(self, node: str) -> Manifest:
        job_id = self._job.name
        if node not in self._manifests:
            try:
                data = self._store.get(f"{job_id}/nodes/{node}/{MANIFEST}")
                manifest = decode_manifest(data, job_id, node)
            except (FileNotFoundError, ValueError):  # a damaged one is written anew
                manifest = Manifest(job_id=job_id, node=node)
            self._manifests[node] = manifest
        return self._manifests[node]

    def _save(self, manifest: Manifest) -> None:
        path = f"{manifest.job_id}/nodes/{manifest.node}/{MANIFEST}"
        self._store.put(path, msgspec.json.encode(manifest))
        self._manifests[manifest.node] = manifest

    def _write_stretch(
        self, folder: str, part: AttemptPart, pages: list[reader.Page], span: range
    ) -> AttemptPart:
        steps = self._write_rows(folder, "steps", span, _step_groups(pages, span))
        stretches = [steps]
        operations = _operations(pages, steps)
        if operations:
            stretches.append(self._write_rows(folder, "operations", span, operations))
        return msgspec.structs.replace(part, stretches=(*part.stretches, *stretches))

    def _write_rows(
        self, folder: str, table: TableName, span: range, groups: list[pa.Table]
    ) -> Stretch:
        data = write_table(groups)
        self._store.put(f"{folder}/{table_name(table, span.start)}", data)
        bounds = [pc.min_max(group["step"]).as_py() for group in groups if len(group)]
        return Stretch(
            table=table,
            first_row=span.start,
            end_row=span.stop,
            rows=sum(map(len, groups)),
            size_bytes=len(data),
            first_step=min((each["min"] for each in bounds), default=0),
            last_step=max((each["max"] for each in bounds), default=-1),
        )

    def _write_ranks(self, folder: str, ranks: list[_Rank]) -> None:
        suffixes = SIDE_FILES.values()
        sides = [[_side_file(each.page.path.with_suffix(s)) for s in suffixes] for each in ranks]
        numbers = [each.page.identity["rank"] for each in ranks]
        data = pack_ranks(numbers, [each.head for each in ranks], sides)
        self._store.put(f"{folder}/{table_name(RANKS, 0)}", data)


def pack_ranks(
    numbers: Sequence[int],
    heads: Sequence[reader.PageHead],
    sides: Sequence[Sequence[bytes | None]],
) -> bytes:
    """The table of ranks: what their pages say beside rows, and their ``SIDE_FILES``."""
    columns: dict[str, Any] = {"rank": pa.array(numbers, pa.int32())}
    for names, values in ((reader.PageHead._fields, heads), (tuple(SIDE_FILES), sides)):
        for index, name in enumerate(names):
            columns[name] = pa.array([each[index] for each in values], pa.binary())
    sink = pa.BufferOutputStream()
    options = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table(columns), sink, **options)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _with_part(manifest: Manifest, attempt: str, part: AttemptPart) -> Manifest:
    return msgspec.structs.replace(manifest, attempts={**manifest.attempts, attempt: part})


def _ranks_by_node(attempt: Path, owner: int) -> dict[str, list[_Rank]]:
    """The readable pages of an attempt by the name of their node's folder."""
    nodes: dict[str, list[_Rank]] = defaultdict(list)
    for path in list_pages(attempt, _MAX_PAGES):
        try:
            head = reader.PageReader(path, owner).read_head()
            page = reader.page_of(head, path)
        except reader.PageError:
            continue
        if page.is_of_plugin:  # its rows mean something only beside the launches of all
            continue
        nodes[fit_job_id(page.identity["node"])].append(_Rank(page, head))
    return nodes


def _is_quiet(nodes: dict[str, list[_Rank]]) -> bool:
    """Whether all ranks have ended, and have had the time to say their last words."""
    pages = [rank.page for ranks in nodes.values() for rank in ranks]
    latest = max((page.progress_wall_seconds for page in pages), default=math.inf)
    has_ended = all(page.phase in ENDED_PHASES for page in pages)
    return has_ended and latest + _QUIET_SECONDS < time.time()


def _next_span(pages: Sequence[reader.Page], first: int, has_ended: bool) -> range | None:
    """Numbers of the rows of the next stretch; None while it is not finished."""
    ahead = [page for page in pages if page.state["steps"] > first]
    if not ahead:
        return None
    ring = min(page.identity["row_count"] for page in pages)
    newest = max(page.state["steps"] for page in ahead)
    # What the rings have overwritten is gone.
    first = max(first, min(page.state["steps"] for page in ahead) - ring)
    end = first + min(STRETCH_ROWS, max(1, ring // 2))
    if has_ended:
        # A rank that died between a row and the state that counts it has one more.
        return range(first, min(newest + 1, end))
    is_finished = min(page.state["settled_steps"] for page in pages) >= end
    # A rank that falls behind by a ring, as only one that waits for nobody can, is not waited for.
    return range(first, end) if is_finished or newest >= first + ring else None


def _step_groups(pages: Sequence[reader.Page], span: range) -> list[pa.Table]:
    groups = []
    for first in range(span.start, span.stop, GROUP_ROWS):
        last = min(span.stop, first + GROUP_ROWS)
        rows = [(page.identity["rank"], _rows(page, first, last)) for page in pages]
        groups.append(make_table(ROW, rows))
    return groups


def _rows(page: reader.Page, first: int, last: int) -> bytes:
    try:
        return reader.read_numbered(page, first, last) if first < last else b""
    except reader.PageError:
        return b""


def _operations(pages: Sequence[reader.Page], steps: Stretch) -> list[pa.Table]:
    """Operations of the same steps; none where no rank has any."""
    rows, at = [], OPERATION.offsets["step"]
    for page in pages:
        try:
            data = read_operations(operations_path(page.path))
        except reader.PageError:
            continue
        inside = [
            data[begin : begin + OPERATION.size]
            for begin in range(0, len(data), OPERATION.size)
            if steps.first_step
            <= int.from_bytes(data[begin + at : begin + at + 8], "little", signed=True)
            <= steps.last_step
        ]
        rows.append((page.identity["rank"], b"".join(inside)))
    return [make_table(OPERATION, rows)] if any(data for _, data in rows) else []


def _side_file(path: Path, max_bytes: int = _MAX_SIDE_BYTES) -> bytes | None:
    try:
        return read_foreign(path, max_bytes)
    except OSError:
        return None
