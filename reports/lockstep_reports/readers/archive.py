"""Reads a job of an archive, in a folder or any store: what lies there in columns, and pages.

Only the columns of a report are fetched. What cannot be read is left out, and the notes say how
much of the recording that is; a rank of which too little is left counts as one without a page.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import fsspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lockstep_records.archive.manifest import EVENTS, AttemptPart, Stretch
from lockstep_records.archive.reader import ArchiveError, JobArchive, restore_page
from lockstep_records.archive.tables import (
    GROUP_ROWS,
    NANOSECOND,
    column_names,
    nanoseconds_name,
)
from lockstep_records.archive.writer import SIDE_FILES
from lockstep_records.events.event import FILE_NAME, MAX_EVENTS_BYTES, read_events
from lockstep_records.files.jobs import fit_job_id, page_in
from lockstep_records.page.layout import EXTRAS, RING_OFFSET, ROW
from lockstep_records.page.reader import Page, PageError, PageHead, page_of, read_page
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.jobs import read_job
from lockstep_reports.readers.pages import (
    ROW_DTYPE,
    NoStepsError,
    join,
    possible_rows,
    read_rings,
)
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps
from lockstep_reports.recording.window import Window
from lockstep_reports.wording import list_ranks, percent, plural

_SURVEYED = ("rank", "step", "flags", "seconds")
_PAUSES = ("checkpoint_seconds", "eval_seconds")
_UNREAD = {"number", "first_arrival_ns", "gradient_norm", "samples", "sequence_min", "sequence_max"}
_NAMES = {name: (field, index) for name, field, index in column_names(ROW) if name not in _UNREAD}
_FIELDS = dict.fromkeys([*(field for field, _ in _NAMES.values()), "present"])
# Without the room in a row for extras that may come.
_FULL = np.dtype([(n, ("<f8", (len(EXTRAS),)) if n == "extras" else ROW_DTYPE[n]) for n in _FIELDS])
_BRIEF = np.dtype([(n, ROW_DTYPE[n]) for n in ("step", "flags", "seconds", "phase_seconds")])
_SURVEY = np.dtype([(n, ROW_DTYPE[n]) for n in ("step", "flags", "phase_seconds")])
_NO_ROWS, _NO_BRIEF = np.empty(0, dtype=_FULL), np.empty(0, dtype=_BRIEF)
_MAX_SIDE_BYTES = 256 << 10
_FILE = re.compile(r"rank-[0-9]{5,}(\.nccl)?\.(page|stderr|error\.json|stacks)")
_STREAMS = 16
"""Files fetched at once: a store answers each after tens of milliseconds."""
_MAX_SENTENCES = 5
_STATE = ("steps", "step")
_PERIODIC = (
    "allocator_retries", "loader_workers", "batches_ahead", "sync_rounds", "independent_rounds",
    "staleness_sum", "unseen", "unphased_ratio", "collection_seconds", "device_stride",
)  # fmt: skip
# Of what the rank that is told best has; less, and its silence would look like health.
_LEAST_SHARE = 0.5
Item = TypeVar("Item")
Result = TypeVar("Result")
Rows = NDArray[np.void]


def read(path: Path, options: ReadOptions) -> Recording:
    """A job in a folder; raises as ``ReaderModule.read``."""
    return read_archive(JobArchive(fsspec.filesystem("file"), str(path)), options)


def read_url(url: str, options: ReadOptions) -> Recording:
    """A job at an address that fsspec knows, such as s3://BUCKET/jobs/JOB_ID."""
    try:
        files, folder = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise ValueError(f"{url} cannot be opened: {error}") from error
    return read_archive(JobArchive(files, folder), options)


def read_archive(archive: JobArchive, options: ReadOptions) -> Recording:
    """An attempt of a job of an archive; raises as ``ReaderModule.read``."""
    contents = _Contents(archive)
    if not contents.attempts:
        raise ValueError(
            f"{archive.folder} holds no job of an archive; give URL/jobs/JOB_ID, as in"
            " s3://bucket/jobs/4242"
        )
    with TemporaryDirectory(prefix="lockstep-archive-") as folder:
        job = Path(folder) / archive.job_id
        for number in contents.attempts:
            (job / str(number)).mkdir(parents=True)
        (job / FILE_NAME).write_bytes(contents.read_events())
        window = options.window if options.only_window else Window()
        recording = read_job(job, options, partial(_read_attempt, contents, window=window))
        stacks = _list_stacks(archive, recording.steps)
    return replace(recording, path=PurePosixPath(archive.folder), stacks=stacks)


def _list_stacks(archive: JobArchive, steps: Steps) -> tuple[tuple[int, PurePosixPath], ...]:
    folder = PurePosixPath(archive.folder) / str(steps.attempt)
    names = archive.list_names(str(steps.attempt))
    files = [(rank, page_in(Path(), rank).with_suffix(".stacks").name) for rank in steps.ranks]
    return tuple((rank, folder / name) for rank, name in files if names.get(name))


class _Contents:
    """What lies in the archive of a job, by the manifests of its nodes and the names of files.

    Attributes:
        attempts: numbers of those of which something is there.
        losses: sentences on what cannot be read, without their end; the first ``num_common`` are
            about all attempts.
    """

    def __init__(self, archive: JobArchive) -> None:
        self.archive, self.losses = archive, list[str]()
        manifests = self.fetch_all(archive.read_manifest, archive.list_nodes())
        self._manifests = [each for _, each in manifests if each is not None]
        self.num_common = len(self.losses)
        in_columns = {int(number) for each in self._manifests for number in each.attempts}
        in_pages = {int(name) for name in archive.list_names("") if re.fullmatch(r"\d{1,9}", name)}
        self.attempts = sorted(in_columns | in_pages)

    def parts(self, attempt: int) -> Iterator[tuple[str, AttemptPart]]:
        """What each node has of an attempt, by its folder."""
        for manifest in self._manifests:
            if (part := manifest.attempts.get(str(attempt))) is not None:
                yield manifest.node, part

    def read_events(self) -> bytes:
        """The events of all nodes by time, each once."""
        nodes = [f"nodes/{each.node}/{EVENTS}" for each in self._manifests if each.has_events]
        read = partial(self.archive.read, begin=0, end=MAX_EVENTS_BYTES)
        texts = [text for _, text in self.fetch_all(read, [EVENTS, *nodes]) if text]
        lines = dict.fromkeys(line for text in texts for line in text.split(b"\n") if line)
        if len(set(texts)) > 1:
            return b"".join(line + b"\n" for line in sorted(lines, key=_event_time))
        return b"".join(line + b"\n" for line in lines)

    def fetch_all(
        self, read: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | None]]:
        """What is read of each item, in their order; None where it cannot be, which is noted."""

        def attempt(item: Item) -> Result | Exception:
            try:
                return read(item)
            except (ArchiveError, FileNotFoundError) as error:
                return error

        with ThreadPoolExecutor(_STREAMS) as pool:
            # Not all at once: what has been fetched and not taken yet fills memory.
            for first in range(0, len(items), _STREAMS):
                batch = items[first : first + _STREAMS]
                for item, result in zip(batch, pool.map(attempt, batch), strict=True):
                    if isinstance(result, ArchiveError):
                        self.losses.append(str(result))
                    yield item, None if isinstance(result, Exception) else result


def _event_time(line: bytes) -> float:
    try:
        return float(json.loads(line)["time"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0.0


def _read_attempt(
    contents: _Contents, folder: Path, window: Window
) -> tuple[Steps, tuple[Page, ...]]:
    """The steps and pages of an attempt; ``folder`` takes what its readers look for in files."""
    num_before, notes = len(contents.losses), list[str]()
    source = _AttemptSource(contents, folder, notes)
    joined: tuple[Steps, tuple[Page, ...]] | None = None
    while source.pages and joined is None:
        num_losses = len(contents.losses)
        joined = join([source], list(notes), window=window)
        if len(contents.losses) > num_losses:
            # A file that was there in the survey is not any more: who has lost too much by that?
            joined = None
            source.survey_again()
    losses = contents.losses[: contents.num_common] + contents.losses[num_before:]
    if joined is None:
        why = [*losses, *notes, "no rank has left a page"][0]
        raise NoStepsError(f"attempt {folder.name} of {contents.archive.folder}: {why}")
    if losses or source.share < 1:
        parts, share = plural(len(losses), "part"), percent(source.share)
        count = f"{parts} of the archive could not be read; it gives {share} of the ranks' steps"
        losses = [*losses[:_MAX_SENTENCES], count]
    steps, pages = joined
    return replace(steps, notes=(*steps.notes, *(f"{loss}." for loss in losses))), pages


class _Node:
    """What a node has of an attempt: rows in columns, and behind them those of raw pages."""

    def __init__(self, name: str, stretches: Sequence[Stretch]) -> None:
        self.name, self.pages = name, list[Page]()
        self.stretches = [each for each in stretches if each.table == "steps"]
        self.rings: dict[int, Rows] = {}
        self.surveyed: dict[int, Rows] = {}


class _AttemptSource:
    """The rows of an attempt, fetched by node as they are needed.

    Attributes:
        share: of the steps that the ranks count, that which can be read.
    """

    def __init__(self, contents: _Contents, folder: Path, notes: list[str]) -> None:
        self._contents, self._folder, self._notes = contents, folder, notes
        self._attempt = int(folder.name)
        self._nodes = [_Node(name, part.stretches) for name, part in contents.parts(self._attempt)]
        self._ranks: set[int] = set()
        self._read_ranks([name for name, p in contents.parts(self._attempt) if p.is_complete])
        self._read_pages()
        self.share = 1.0
        self.survey_again()

    @property
    def pages(self) -> Sequence[Page]:
        """The pages of all nodes, those of a node after each other."""
        return [page for node in self._nodes for page in node.pages]

    def survey(self) -> Iterator[Rows]:
        """Step, flags and phases of each page's rows."""
        for node in self._nodes:
            yield from (node.surveyed[page.identity["rank"]] for page in node.pages)

    def rows(self, first_step: int, last_step: int) -> Iterator[Rows]:
        """The rows of each page around some steps."""
        # Waits are since an earlier row: that of the row group before, if not a nearer one.
        steps = (first_step - GROUP_ROWS, last_step)
        read = partial(self._read_rows, names=("rank", *_NAMES), dtype=_FULL, steps=steps)
        for node, rows in self._contents.fetch_all(read, self._nodes):
            for page in node.pages:
                rank = page.identity["rank"]
                yield _NO_ROWS if rows is None else rows[rank]

    def _read_ranks(self, complete: Sequence[str]) -> None:
        """Takes the pages from the tables of ranks, and what the ranks said last."""
        events = read_events(self._folder.parent)
        has_end = any(e.kind == "attempt_ended" and e.attempt == self._attempt for e in events)
        read = partial(self._contents.archive.read_ranks, attempt=self._attempt)
        by_name = {node.name: node for node in self._nodes}
        for name, table in self._contents.fetch_all(read, complete):
            rows: list[dict[str, Any]] = [] if table is None else table.to_pylist()
            for row in rows:
                try:
                    head = PageHead(*(row[field] or b"" for field in PageHead._fields))
                    page = page_of(head, page_in(self._folder, row["rank"]))
                    self._add(by_name[name], page)
                except (PageError, KeyError, TypeError) as error:
                    self._contents.losses.append(f"A rank of node {name} is left out: {error}")
                    continue
                for column, suffix in SIDE_FILES.items():
                    if row.get(column) is not None:
                        page.path.with_suffix(suffix).write_bytes(row[column])
                # Its launcher says how it ended; without one the pages do.
                if not has_end:
                    restore_page(page.path, head)

    def _read_pages(self) -> None:
        """Takes the pages of ranks whose attempt is not complete in columns."""
        archive, attempt = self._contents.archive, str(self._attempt)
        names = archive.list_names(attempt)
        selected = [name for name in sorted(names) if _FILE.fullmatch(name)]
        selected = [name for name in selected if _rank_of(name) not in self._ranks]
        fetch = partial(_fetch, archive, self._folder, names)
        for _ in self._contents.fetch_all(fetch, selected):
            pass
        by_name = {node.name: node for node in self._nodes}
        with_rows = {name.removesuffix(".page") for name in selected if name.endswith(".page")}
        for ring in read_rings(self._folder, self._notes, with_rows):
            page, rank = ring.pages[0], ring.pages[0].identity["rank"]
            name = fit_job_id(page.identity["node"])
            if name not in by_name:
                self._nodes.append(node := _Node(name, ()))
                by_name[name] = node
            try:
                self._add(by_name[name], page)
            except PageError as error:
                self._contents.losses.append(str(error))
                continue
            by_name[name].rings[rank] = next(ring.rows(0, 0))

    def _add(self, node: _Node, page: Page) -> None:
        identity = page.identity
        if identity["attempt"] != self._attempt:
            raise PageError("identity", f"{page.path.name} is of attempt {identity['attempt']}")
        if identity["rank"] in self._ranks:
            raise PageError("identity", f"a second page of rank {identity['rank']} is left out")
        self._ranks.add(identity["rank"])
        # A page has hundreds of numbers, of which a report needs a few.
        state = {name: page.state[name] for name in _STATE}
        periodic = {name: page.periodic[name] for name in _PERIODIC}
        node.pages.append(replace(page, state=state, periodic=periodic))

    def survey_again(self) -> None:
        """Reads which steps there are, and leaves out the ranks of which too little is left."""
        strided = any(page.periodic.get("device_stride") for page in self.pages)
        names = (*_SURVEYED, *(_PAUSES if strided else ()))
        read = partial(self._read_rows, names=names, dtype=_BRIEF, steps=None)
        seen: dict[bytes, Rows] = {}
        num_read, num_steps = 0, 0
        shares: dict[int, float] = {}
        for node, rows in self._contents.fetch_all(read, self._nodes):
            for page in node.pages:
                rank, steps = page.identity["rank"], page.state["steps"]
                brief = _NO_BRIEF if rows is None else rows[rank]
                # Most ranks have the same steps.
                brief = _trim(brief, _SURVEY)
                node.surveyed[rank] = seen.setdefault(brief.tobytes(), brief)
                shares[rank] = len(brief) / max(1, steps)
                num_read, num_steps = num_read + min(len(brief), steps), num_steps + steps
        least = _LEAST_SHARE * max(shares.values(), default=0.0)
        lost = sorted(rank for rank, share in shares.items() if share < least)
        if lost:
            self._contents.losses.append(
                f"Of ranks {list_ranks(tuple(lost))} less than half of the steps can be read: they"
                " count as ranks without a page"
            )
            for node in self._nodes:
                node.pages = [p for p in node.pages if p.identity["rank"] not in set(lost)]
        self._nodes = [node for node in self._nodes if node.pages]
        self.share = num_read / num_steps if num_steps else 1.0

    def _read_rows(
        self,
        node: _Node,
        names: Sequence[str],
        dtype: np.dtype[np.void],
        steps: tuple[int, int] | None,
    ) -> dict[int, Rows]:
        """Rows of a node's ranks; a stretch that cannot be read is noted once."""
        parts: dict[int, list[Rows]] = defaultdict(list)
        for stretch in list(node.stretches):
            if steps and (stretch.last_step < steps[0] or stretch.first_step > steps[1]):
                continue
            try:
                stored = dict.fromkeys([*names, *map(nanoseconds_name, names)])
                table = self._contents.archive.read_rows(
                    node.name, self._attempt, stretch, stored, steps=steps
                )
                ranks, rows = _decode(table, names, dtype)
            except ArchiveError as error:
                self._contents.losses.append(str(error))
                node.stretches.remove(stretch)
                continue
            for page in node.pages:
                parts[page.identity["rank"]].append(rows[ranks == page.identity["rank"]])
        for rank, ring in node.rings.items():
            end = int(ring["step"][0]) if len(ring) else 1 << 62
            older = [rows[rows["step"] < end] for rows in parts[rank]]
            parts[rank] = [*older, _trim(ring, dtype)]
        return {
            rank: possible_rows(np.concatenate([np.empty(0, dtype), *parts[rank]]))
            for rank in (page.identity["rank"] for page in node.pages)
        }


def _trim(rows: Rows, dtype: np.dtype[np.void]) -> Rows:
    """The fields of rows that a smaller type has."""
    trimmed = np.empty(len(rows), dtype)
    for name in dtype.names or ():
        trimmed[name] = (
            rows[name] if rows[name].ndim == 1 else rows[name][:, : dtype[name].shape[0]]
        )
    return trimmed


def _rank_of(name: str) -> int:
    return int(name.removeprefix("rank-").partition(".")[0])


def _fetch(archive: JobArchive, folder: Path, sizes: dict[str, int], name: str) -> None:
    """Brings a file here; of a page only the rows that are written."""
    source, size, target = f"{folder.name}/{name}", sizes[name], folder / name
    if not name.endswith(".page"):
        target.write_bytes(archive.read(source, 0, min(size, _MAX_SIDE_BYTES)))
        return
    with target.open("wb") as file:
        file.write(archive.read(source, 0, min(size, RING_OFFSET)))
        file.truncate(size)
    try:
        page = read_page(target)
    except PageError:
        return  # its reader says why
    count = min(page.state["steps"] + 1, page.identity["row_count"])
    with target.open("r+b") as file:
        file.seek(RING_OFFSET)
        file.write(archive.read(source, RING_OFFSET, RING_OFFSET + count * ROW.size))


def _decode(
    table: pa.Table, names: Sequence[str], dtype: np.dtype[np.void]
) -> tuple[NDArray[np.int32], Rows]:
    """Ranks and rows [rows] of a table; raises ArchiveError where a number is missing."""
    rows = np.zeros(len(table), dtype)
    for name in names:
        short = nanoseconds_name(name)
        stored = name if name in table.column_names else short
        bit = ROW.presence.get(name, 0)
        if stored not in table.column_names:
            continue  # an extra that was not recorded then
        column = table.column(stored)
        if column.null_count and not bit:
            raise ArchiveError(f"column {stored} of a file of steps has gaps")
        if bit:
            is_known = column.is_valid().to_numpy()
            rows["present"] |= np.where(is_known, bit, 0).astype(np.uint32)
            column = column.fill_null(0)
        values = column.to_numpy()
        if stored != name:
            values = values * NANOSECOND
        if name == "rank":
            ranks = values
            continue
        field, index = _NAMES[name]
        (rows[field] if rows[field].ndim == 1 else rows[field][:, index])[:] = values
    return ranks, rows
