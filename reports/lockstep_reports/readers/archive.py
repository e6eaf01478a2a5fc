"""Reads a job of an archive, in a folder or any store: what lies there in columns, and pages.

Only the columns of a report are fetched. What cannot be read is left out, and the notes say how
much of the recording that is; a rank of which too little is left counts as one without a page.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Generic, NamedTuple, TypeVar

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
from lockstep_reports.arrays import Integers
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.engine import Engine, run_here
from lockstep_reports.readers.jobs import read_job
from lockstep_reports.readers.page_rows import (
    Columns,
    Part,
    Question,
    Rows,
    are_possible,
    join_rows,
    select_rows,
)
from lockstep_reports.readers.pages import (
    ROW_DTYPE,
    NoStepsError,
    damaged_rows,
    join,
    read_rings,
)
from lockstep_reports.recording.recording import Recording, Window
from lockstep_reports.recording.steps import Steps
from lockstep_reports.wording import list_ranks, percent, plural

_SURVEYED = ("step", "flags", "seconds")
_PAUSES = ("checkpoint_seconds", "eval_seconds")
_UNREAD = {"number", "first_arrival_ns", "gradient_norm", "samples", "sequence_min", "sequence_max"}
_NAMES = {name: (field, index) for name, field, index in column_names(ROW) if name not in _UNREAD}
_FIELDS = dict.fromkeys([*(field for field, _ in _NAMES.values()), "present"])
# Without the room in a row for extras that may come.
_FULL = np.dtype([(n, ("<f8", (len(EXTRAS),)) if n == "extras" else ROW_DTYPE[n]) for n in _FIELDS])
_BRIEF = np.dtype([(n, ROW_DTYPE[n]) for n in ("step", "flags", "seconds", "phase_seconds")])
_SURVEY = np.dtype([(n, ROW_DTYPE[n]) for n in ("step", "flags", "phase_seconds")])
_MAX_SIDE_BYTES = 256 << 10
_FILE = re.compile(r"rank-[0-9]{5,}(\.nccl)?\.(page|stderr|error\.json|stacks)")
_MAX_SENTENCES = 5
_MAX_CELLS = 1 << 27  # 512 MiB a matrix: of 100,000 ranks 1,342 steps
_STATE = ("steps", "step")
_PERIODIC = (
    "allocator_retries", "loader_workers", "batches_ahead", "sync_rounds", "independent_rounds",
    "staleness_sum", "unseen", "unphased_ratio", "collection_seconds", "device_stride",
)  # fmt: skip
# Of what the rank that is told best has; less, and its silence would look like health.
_LEAST_SHARE = 0.5
_Survey = NDArray[np.void]
Item = TypeVar("Item")
Result = TypeVar("Result")


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
    contents = _Contents(archive, options.engine or run_here)
    if not contents.attempts:
        if contents.losses:
            raise ValueError(f"{archive.folder} cannot be read: {contents.losses[0]}")
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

    def __init__(self, archive: JobArchive, engine: Engine) -> None:
        self.archive, self.engine, self.losses = archive, engine, list[str]()
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

        for item, result in zip(items, run_here(attempt, items), strict=True):
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
        joined = join([source], list(notes), _MAX_CELLS, window)
        if len(contents.losses) > num_losses:
            # A file that was there in the survey is not any more: who has lost too much by that?
            joined = None
            source.survey_again()
    losses = contents.losses[: contents.num_common] + contents.losses[num_before:]
    if joined is None:
        why = [*losses, *notes, "no rank has left a page"][0]
        text = f"attempt {folder.name} of {contents.archive.folder}: {why}"
        # Of steps that cannot be read nobody may say that there were none.
        is_unread = any(part.stretches for _, part in contents.parts(int(folder.name)))
        raise ValueError(text) if is_unread else NoStepsError(text)
    if losses or source.share < 1 or source.num_damaged:
        count = f"The archive gives {percent(source.share)} of the ranks' steps"
        count += f"; {plural(len(losses), 'part')} of it could not be read" if losses else ""
        if source.num_damaged:
            count += f"; left out: {damaged_rows(source.num_damaged)}"
        losses = [*losses[:_MAX_SENTENCES], count]
    steps, pages = joined
    return replace(steps, notes=(*steps.notes, *(f"{loss}." for loss in losses))), pages


class _Node:
    """What a node has of an attempt: rows in columns, and behind them those of raw pages."""

    def __init__(self, name: str, stretches: Sequence[Stretch]) -> None:
        self.name, self.pages = name, list[Page]()
        self.stretches = [each for each in stretches if each.table == "steps"]
        self.rings: dict[int, Rows] = {}
        self.num_damaged = 0
        self.surveyed: list[_Survey] = []


class _Read(NamedTuple, Generic[Result]):
    """What a node gave, sentences on files that it did not, and what is left of its stretches."""

    result: Result
    losses: list[str]
    stretches: list[Stretch]
    num_damaged: int


class _NodeReader(NamedTuple):
    """Reads the rows of an attempt by nodes, wherever that runs."""

    archive: JobArchive
    attempt: int

    def survey(self, names: Sequence[str], node: _Node) -> _Read[list[_Survey]]:
        """Step, flags and phases of each page's rows; pages of the same rows share them."""
        read = self._rows(node, ("rank", *names), _BRIEF, None)
        rows, page_of = read.result
        trimmed, seen = _trim(rows, _SURVEY), dict[bytes, _Survey]()
        ends = np.searchsorted(page_of, np.arange(1, len(node.pages) + 1)).tolist()
        parts = [trimmed[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        shared = [seen.setdefault(each.tobytes(), each.copy()) for each in parts]
        return _Read(shared, *read[1:])

    def answer(self, question: Question, node: _Node) -> _Read[Part]:
        """What is asked of the rows."""
        first, last = question.numbers[[0, -1]].tolist() if len(question.numbers) else (0, -1)
        # Waits are since an earlier row: that of the row group before, if not a nearer one.
        read = self._rows(node, ("rank", *_NAMES), _FULL, (first - GROUP_ROWS, last))
        return _Read(question.answer(node.pages, *read.result), *read[1:])

    def _rows(
        self, node: _Node, names: Sequence[str], dtype: np.dtype[np.void],
        steps: tuple[int, int] | None,
    ) -> _Read[tuple[Columns, Integers]]:  # fmt: skip
        """Rows of a node's pages after each other, and the page of each [rows]."""
        parts, ranks = [Columns.of(np.empty(0, dtype))], [np.empty(0, dtype=np.int32)]
        stored, losses, left = [*names, *map(nanoseconds_name, names)], [], list[Stretch]()
        num_damaged = 0
        for stretch in node.stretches:
            if not steps or (stretch.last_step >= steps[0] and stretch.first_step <= steps[1]):
                try:
                    table, num_lost = self.archive.read_rows(
                        node.name, self.attempt, stretch, stored, steps=steps
                    )
                    rank, rows = _decode(table, names, dtype)
                except ArchiveError as error:
                    losses.append(str(error))
                    continue
                is_possible = are_possible(rows)
                num_lost += int(np.count_nonzero(~is_possible))
                if num_lost * 2 > stretch.rows:
                    what = f"{damaged_rows(num_lost)}, of {stretch.rows:,}"
                    losses.append(f"{stretch.name} of node {node.name} has {what}")
                    continue
                num_damaged += num_lost
                parts.append(select_rows(rows, is_possible))
                ranks.append(rank[is_possible])
            left.append(stretch)
        for number, ring in node.rings.items():
            first = int(ring["step"][0]) if len(ring) else 1 << 62
            for at, rows in enumerate(parts):
                older = (ranks[at] != number) | (rows["step"] < first)
                parts[at], ranks[at] = rows[older], ranks[at][older]
            parts.append(Columns.of(_trim(ring, dtype)))
            ranks.append(np.full(len(ring), number, dtype=np.int32))
        rows, page_of = join_rows(parts[1:] or parts), _find_pages(node.pages, ranks)
        chosen = page_of >= 0
        order = np.flatnonzero(chosen)[np.argsort(page_of[chosen], kind="stable")]
        if (np.diff(order, prepend=-1) != 1).any() or len(order) < len(rows):
            rows, page_of = rows[order], page_of[order]
        return _Read((rows, page_of), losses, left, num_damaged)


def _find_pages(pages: Sequence[Page], ranks: Sequence[NDArray[np.int32]]) -> Integers:
    """Which of the pages has each rank [ranks], -1 where none has it."""
    of_page = np.array([page.identity["rank"] for page in pages] or [-1])
    every, order = np.concatenate(ranks), np.argsort(of_page)
    found = order[np.minimum(np.searchsorted(of_page[order], every), len(of_page) - 1)]
    return np.where(of_page[found] == every, found, -1)


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
        parts = list(contents.parts(self._attempt))
        self._read_ranks([name for name, part in parts if part.is_complete])
        self._read_pages()
        # Of a node that died there is what its ranks were when its last rows were packed.
        dead = {node.name for node in self._nodes if node.stretches and not node.pages}
        self._read_ranks([name for name, part in parts if name in dead and not part.is_complete])
        self._reader, self.share = _NodeReader(contents.archive, self._attempt), 1.0
        self.survey_again()

    @property
    def pages(self) -> Sequence[Page]:
        """The pages of all nodes, those of a node after each other."""
        return [page for node in self._nodes for page in node.pages]

    @property
    def num_damaged(self) -> int:
        """Rows that the newest question met damaged."""
        return sum(node.num_damaged for node in self._nodes)

    def survey(self) -> Iterator[_Survey]:
        """Step, flags and phases of each page's rows."""
        return chain.from_iterable(node.surveyed for node in self._nodes)

    def parts(self, question: Question) -> Iterator[tuple[Sequence[Page], Part]]:
        """What is asked of the rows, by node."""
        for node, part in self._ask_nodes(partial(self._reader.answer, question)):
            yield node.pages, part

    def _ask_nodes(self, ask: Callable[[_Node], _Read[Result]]) -> Iterator[tuple[_Node, Result]]:
        """What each node gives; a file that cannot be read is noted once."""
        reads = self._contents.engine(ask, self._nodes)
        for node, read in zip(self._nodes, reads, strict=True):
            self._contents.losses += read.losses
            node.stretches, node.num_damaged = read.stretches, read.num_damaged
            yield node, read.result

    def _read_ranks(self, complete: Sequence[str]) -> None:
        """Takes the pages from the tables of ranks, and what the ranks said last."""
        events = read_events(self._folder.parent)
        has_end = any(e.kind == "attempt_ended" and e.attempt == self._attempt for e in events)
        read = partial(self._contents.archive.read_ranks, attempt=self._attempt)
        by_name = {node.name: node for node in self._nodes}
        for name, table in self._contents.fetch_all(read, complete):
            rows: list[dict[str, Any]] = [] if table is None else table.to_pylist()
            refused = list[str]()
            for row in rows:
                try:
                    head = PageHead(*(row[field] or b"" for field in PageHead._fields))
                    page = page_of(head, page_in(self._folder, row["rank"]))
                    self._add(by_name[name], page)
                except (PageError, KeyError, TypeError) as error:
                    refused.append(str(error))
                    continue
                for column, suffix in SIDE_FILES.items():
                    if row.get(column) is not None:
                        page.path.with_suffix(suffix).write_bytes(row[column])
                # Its launcher says how it ended; without one the pages do.
                if not has_end:
                    restore_page(page.path, head)
            if refused:
                sentence = f"{plural(len(refused), 'rank')} of node {name} left out: {refused[0]}"
                self._contents.losses.append(sentence)

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
            by_name[name].rings[rank] = ring.take()

    def _add(self, node: _Node, page: Page) -> None:
        identity = page.identity
        if identity["attempt"] != self._attempt:
            raise PageError("identity", f"{page.path.name} is of attempt {identity['attempt']}")
        if identity["rank"] in self._ranks:
            raise PageError("identity", f"another node has rank {identity['rank']}")
        self._ranks.add(identity["rank"])
        # A page has hundreds of numbers, of which a report needs a few.
        state = {name: page.state[name] for name in _STATE}
        periodic = {name: page.periodic[name] for name in _PERIODIC}
        node.pages.append(replace(page, state=state, periodic=periodic))

    def survey_again(self) -> None:
        """Reads which steps there are, and leaves out the ranks of which too little is left."""
        strided = any(page.periodic.get("device_stride") for page in self.pages)
        names, seen = (*_SURVEYED, *(_PAUSES if strided else ())), dict[bytes, _Survey]()
        shares: dict[int, float] = {}
        for node, surveyed in self._ask_nodes(partial(self._reader.survey, names)):
            # Most ranks have the same steps.
            node.surveyed = [seen.setdefault(each.tobytes(), each) for each in surveyed]
            for page, rows in zip(node.pages, surveyed, strict=True):
                steps = page.state["steps"]
                shares[page.identity["rank"]] = len(rows) / max(1, steps)
        least = _LEAST_SHARE * max(shares.values(), default=0.0)
        lost = {rank for rank, share in shares.items() if share < least}
        if lost:
            self._contents.losses.append(
                f"Of ranks {list_ranks(tuple(sorted(lost)))} less than half of the steps can be"
                " read: they count as ranks without a page"
            )
            for node in self._nodes:
                pairs = zip(node.pages, node.surveyed, strict=True)
                remaining = [pair for pair in pairs if pair[0].identity["rank"] not in lost]
                node.pages, node.surveyed = (
                    [pair[0] for pair in remaining],
                    [pair[1] for pair in remaining],
                )
        self._nodes = [node for node in self._nodes if node.pages]
        counts = [page.state["steps"] for page in self.pages]
        num_read = sum(
            min(1.0, shares[page.identity["rank"]]) * page.state["steps"] for page in self.pages
        )
        if self.pages and self._contents.losses:
            # Whoever is not read may have done as much as any other.
            num_missing = self.pages[0].identity["world_size"] - len(counts)
            counts.append(max(counts) * num_missing)
        self.share = num_read / sum(counts) if sum(counts) else 1.0


def _trim(rows: Rows, dtype: np.dtype[np.void]) -> NDArray[np.void]:
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
) -> tuple[NDArray[np.int32], Columns]:
    """Ranks and rows [rows] of a table; raises ArchiveError where a number is missing."""
    # A number that nobody recorded takes no memory.
    fields = {
        name: np.broadcast_to(np.zeros((), dtype[name].base), (*dtype[name].shape, len(table)))
        for name in dtype.names or ()
    }
    for name in names:
        short = nanoseconds_name(name)
        stored = name if name in table.column_names else short
        bit = ROW.presence.get(name, 0)
        if stored not in table.column_names:
            continue  # an extra that was not recorded then
        column = table.column(stored)
        if bit and column.null_count == len(column):
            continue
        if column.null_count and not bit:
            raise ArchiveError(f"column {stored} of a file of steps has gaps")
        if bit:
            is_known = column.is_valid().to_numpy()
            fields["present"] = fields["present"] | np.where(is_known, bit, 0).astype(np.uint32)
            column = column.fill_null(0)
        values = column.to_numpy()
        if stored != name:
            values = values * NANOSECOND
        if name == "rank":
            ranks = values
            continue
        field, index = _NAMES[name]
        if fields[field].ndim == 1:
            fields[field] = values
            continue
        if not fields[field].flags.writeable:
            fields[field] = fields[field].copy()
        fields[field][index] = values
    return ranks, Columns({name: values.T for name, values in fields.items()})
