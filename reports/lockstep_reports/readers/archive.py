"""Reads a job of an archive, in a folder or any store: what lies there in columns, and pages.

Only the columns of a report are fetched. What cannot be read is left out, and the notes say how
much of the recording that is; a rank of which too little is left counts as one without a page.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import fsspec

from lockstep_records.archive.manifest import EVENTS, FINDINGS, THINNED, AttemptPart
from lockstep_records.archive.reader import ArchiveError, JobArchive, restore_page
from lockstep_records.archive.writer import SIDE_FILES
from lockstep_records.events.event import FILE_NAME, MAX_EVENTS_BYTES, read_events
from lockstep_records.files.jobs import JOB_ID, fit_job_id, page_in
from lockstep_records.page.layout import RING_OFFSET, ROW
from lockstep_records.page.reader import Page, PageError, PageHead, page_of, read_page
from lockstep_reports.minutes import READ, join_minutes
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.archive_nodes import NodeRead, NodeReader, NodeRows, Survey
from lockstep_reports.readers.engine import Engine, run_here
from lockstep_reports.readers.jobs import read_job
from lockstep_reports.readers.page_rows import Part, Question
from lockstep_reports.readers.pages import (
    MAX_OPERATIONS,
    NoStepsError,
    damaged_rows,
    is_sampled,
    join,
    join_operations,
    read_rings,
    too_many_operations,
)
from lockstep_reports.recording.recording import Recording, Window
from lockstep_reports.recording.steps import SampledOperations, Steps
from lockstep_reports.recording.thinned import Thinned
from lockstep_reports.wording import list_ranks, percent, plural

_MAX_SIDE_BYTES, _MAX_FINDINGS_BYTES = 256 << 10, 256 << 20
_FILE = re.compile(r"rank-[0-9]{5,}(\.nccl)?\.(page|stderr|error\.json|stacks)")
_MAX_SENTENCES = 5
_MAX_CELLS = 1 << 27  # 512 MiB a matrix: of 100,000 ranks 1,342 steps
_STATE = frozenset(("steps", "step"))
_PERIODIC = frozenset((
    "allocator_retries", "loader_workers", "batches_ahead", "sync_rounds", "independent_rounds",
    "staleness_sum", "unseen", "unphased_ratio", "collection_seconds", "device_stride",
))  # fmt: skip
# Of what the rank that is told best has; less, and its silence would look like health.
_LEAST_SHARE = 0.5
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


def read_archive(
    archive: JobArchive, options: ReadOptions, *, is_strict: bool = False
) -> Recording:
    """An attempt of a job of an archive; raises as ``ReaderModule.read``.

    Where it ``is_strict``, ValueError is raised too for what else notes say that it is not read.
    """
    for is_last in (False, False, True):
        contents = Contents(archive, options.engine, is_strict=is_strict)
        try:
            recording = _read(contents, options)
        except ValueError:
            if is_last or not contents.is_outdated():
                raise
        else:
            if is_last or not contents.losses or not contents.is_outdated():
                break
        # Its files went while they were read: what thinning left of them is there.
    return recording


def _read(contents: "Contents", options: ReadOptions) -> Recording:
    archive = contents.archive
    if not contents.attempts or not JOB_ID.fullmatch(archive.job_id):
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
    thinned = contents.minutes.get(recording.steps.attempt)
    path = PurePosixPath(archive.folder)
    return replace(recording, path=path, stacks=stacks, thinned=thinned)


def _list_stacks(archive: JobArchive, steps: Steps) -> tuple[tuple[int, PurePosixPath], ...]:
    folder = PurePosixPath(archive.folder) / str(steps.attempt)
    names = archive.list_names(str(steps.attempt))
    files = ((rank, f"rank-{rank:05d}.stacks") for rank in steps.ranks)
    return tuple((rank, folder / name) for rank, name in files if names.get(name))


class Contents:
    """What lies in the archive of a job, by the manifests of its nodes and the names of files.

    Attributes:
        manifests: of its nodes, with what thinning left of attempts.
        thinned: what thinning left; None where it never was there.
        minutes: of attempts that were thinned, once these are read.
        attempts: numbers of those of which something is there.
        losses: sentences on what cannot be read, without their end; the first ``num_common`` are
            about all attempts.
    """

    def __init__(
        self, archive: JobArchive, engine: Engine | None = None, *, is_strict: bool = False
    ) -> None:
        self.run_here = partial(run_here, is_local=archive.is_local)
        self.archive, self.losses = archive, list[str]()
        self.engine = engine or self.run_here
        self.is_strict, self.minutes = is_strict, dict[int, Thinned]()
        ((_, self.thinned),) = self.fetch_all(lambda _: archive.read_thinned(), (THINNED,))
        manifests = self.fetch_all(archive.read_manifest, archive.list_nodes())
        self.manifests = [each for _, each in manifests if each is not None]
        if self.thinned is not None:
            self.manifests = self.thinned.replace_parts(self.manifests)
        self.num_common = len(self.losses)
        in_columns = {int(number) for each in self.manifests for number in each.attempts}
        in_pages = {int(name) for name in archive.list_names("") if re.fullmatch(r"\d{1,9}", name)}
        self.attempts = sorted(in_columns | in_pages)

    def parts(self, attempt: int) -> Iterator[tuple[str, AttemptPart]]:
        """What each node has of an attempt, by its folder."""
        for manifest in self.manifests:
            if (part := manifest.attempts.get(str(attempt))) is not None:
                yield manifest.node, part

    def is_outdated(self) -> bool:
        """Whether attempts were thinned since this was read."""
        try:
            thinned = self.archive.read_thinned()
        except (ArchiveError, FileNotFoundError):
            return False
        return self.thinned is None or thinned.attempts.keys() != self.thinned.attempts.keys()

    def read_minutes(self, number: int) -> Thinned | None:
        """The minutes of an attempt that was thinned; None of another."""
        attempt = self.thinned and self.thinned.attempts.get(str(number))
        if not self.thinned or not attempt or not attempt.num_thinned:
            return None
        findings = self.fetch_all(
            partial(self.archive.read, begin=0, end=_MAX_FINDINGS_BYTES), [f"{number}/{FINDINGS}"]
        )
        stretches = [
            (node, stretch)
            for node, part in attempt.nodes.items()
            for stretch in part.stretches
            if stretch.table == "minutes"
        ]
        tables = self.fetch_all(
            lambda each: self.archive.read_rows(each[0], number, each[1], READ)[0], stretches
        )
        found = [table for _, table in tables if table is not None]
        data = next(findings)[1] or b""
        data = data if zlib.crc32(data) == attempt.findings_crc else b""
        self.minutes[number] = thinned = join_minutes(found, attempt, self.thinned.time, data)
        return thinned

    def read_events(self) -> bytes:
        """The events of all nodes by time, each once."""
        nodes = [f"nodes/{each.node}/{EVENTS}" for each in self.manifests if each.has_events]
        read = partial(self.archive.read, begin=0, end=MAX_EVENTS_BYTES)
        texts = [text for _, text in self.fetch_all(read, [EVENTS, *nodes]) if text]
        lines = dict.fromkeys(line for text in texts for line in text.split(b"\n") if line)
        if len(set(texts)) > 1:
            return b"".join(line + b"\n" for line in sorted(lines, key=_event_time))
        return b"".join(line + b"\n" for line in lines)

    def fetch_all(
        self, read: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | None]]:
        """What is read of each item, in their order; None where it cannot be, which is noted.

        Where all ``is_strict`` raises ArchiveError instead.
        """

        def attempt(item: Item) -> Result | Exception:
            try:
                return read(item)
            except (ArchiveError, FileNotFoundError) as error:
                return error

        for item, result in zip(items, self.run_here(attempt, items), strict=True):
            if isinstance(result, ArchiveError):
                if self.is_strict:
                    raise result
                self.losses.append(str(result))
            yield item, None if isinstance(result, Exception) else result


def _event_time(line: bytes) -> float:
    try:
        return float(json.loads(line)["time"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0.0


def _read_attempt(
    contents: Contents, folder: Path, window: Window
) -> tuple[Steps, tuple[Page, ...]]:
    """The steps and pages of an attempt; ``folder`` takes what its readers look for in files."""
    num_before, notes = len(contents.losses), list[str]()
    source = _AttemptSource(contents, folder, notes)
    joined = _join(source, contents, notes, window)
    losses = contents.losses[: contents.num_common] + contents.losses[num_before:]
    # Of steps that cannot be read nobody may say that there were none.
    is_unread = any(part.stretches for _, part in contents.parts(int(folder.name)))
    if joined is None or (is_unread and not len(joined[0].numbers)):
        why = [*losses, *notes, "no rank has left a page"][0]
        text = f"attempt {folder.name} of {contents.archive.folder}: {why}"
        raise ValueError(text) if is_unread else NoStepsError(text)
    if contents.is_strict and (losses or source.num_damaged):
        raise ValueError([*losses, damaged_rows(source.num_damaged)][0])
    num_before, (steps, pages) = len(contents.losses), joined
    steps = replace(steps, operations=source.read_operations(steps))
    losses += contents.losses[num_before:]
    if losses or source.share < 1 or source.num_damaged:
        count = f"The archive gives {percent(source.share)} of the ranks' steps"
        count += f"; {plural(len(losses), 'part')} of it could not be read" if losses else ""
        if source.num_damaged:
            count += f"; left out: {damaged_rows(source.num_damaged)}"
        losses = [*losses[:_MAX_SENTENCES], count]
    sentences = [f"{loss}." for loss in losses]
    sentences += [source.thinned.describe()] if source.thinned else []
    return replace(steps, notes=(*steps.notes, *sentences)), pages


def _join(
    source: "_AttemptSource", contents: Contents, notes: list[str], window: Window
) -> tuple[Steps, tuple[Page, ...]] | None:
    """The steps and pages of a source; None where no page is left."""
    while source.pages:
        num_losses, before = len(contents.losses), list(notes)
        joined = join([source], before, _MAX_CELLS, window)
        if len(contents.losses) == num_losses:
            return joined
        # A file that was there in the survey is not any more: who has lost too much by that?
        source.survey_again()
    return None


class _AttemptSource:
    """The rows of an attempt, fetched by node as they are needed."""

    def __init__(self, contents: Contents, folder: Path, notes: list[str]) -> None:
        self._contents, self._folder, self._notes = contents, folder, notes
        self._attempt = int(folder.name)
        self._nodes = [
            NodeRows(name, part.stretches) for name, part in contents.parts(self._attempt)
        ]
        self._ranks: set[int] = set()
        parts = list(contents.parts(self._attempt))
        self._read_ranks([name for name, part in parts if part.is_complete])
        self._read_pages()
        # Of a node that died there is what its ranks were when its last rows were packed.
        dead = {node.name for node in self._nodes if node.stretches and not node.pages}
        self._read_ranks([name for name, part in parts if name in dead and not part.is_complete])
        self._reader = NodeReader(contents.archive, self._attempt)
        self.thinned = contents.read_minutes(self._attempt)
        self.survey_again()

    @property
    def pages(self) -> Sequence[Page]:
        """The pages of all nodes, those of a node after each other."""
        return [page for node in self._nodes for page in node.pages]

    @property
    def num_damaged(self) -> int:
        """Rows that the newest question met damaged."""
        return sum(node.num_damaged for node in self._nodes)

    @property
    def share(self) -> float:
        """Of the steps that the ranks count, that which can be read."""
        num_lost = max(0, self.num_damaged - self._num_damaged_before)
        return (self._num_surveyed - num_lost) / self._num_steps if self._num_steps else 1.0

    def survey(self) -> Iterator[Survey]:
        """Step and flags of each page's rows, and pauses where devices time only some steps."""
        return chain.from_iterable(node.surveyed for node in self._nodes)

    def parts(self, question: Question) -> Iterator[tuple[Sequence[Page], Part]]:
        """What is asked of the rows, by node."""
        for node, part in self._ask_nodes(partial(self._reader.answer, question)):
            yield node.pages, part

    def _ask_nodes(
        self, ask: Callable[[NodeRows], NodeRead[Result]]
    ) -> Iterator[tuple[NodeRows, Result]]:
        """What each node gives; a file that cannot be read is noted once."""
        self._nodes = [node for node in self._nodes if node.pages]
        reads = self._contents.engine(ask, self._nodes)
        for node, read in zip(self._nodes, reads, strict=True):
            self._contents.losses += read.losses
            node.stretches, node.num_damaged = read.stretches, read.num_damaged
            yield node, read.result

    def read_operations(self, steps: Steps) -> SampledOperations | None:
        """Those of some steps; of more than a report holds none."""
        count = sum(each.rows for node in self._nodes for each in node.operations)
        if count > MAX_OPERATIONS:
            self._contents.losses.append(too_many_operations(count))
        if count > MAX_OPERATIONS or not len(steps.numbers):
            return None
        bounds = int(steps.numbers[0]), int(steps.numbers[-1])
        ask, parts = partial(self._reader.sum_operations, bounds), list[SampledOperations]()
        for part, losses in self._contents.engine(ask, [n for n in self._nodes if n.operations]):
            self._contents.losses += losses
            parts += [part] if part is not None else []
        return join_operations(parts)

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
                    sides = {
                        suffix: memoryview(row[column])
                        for column, suffix in SIDE_FILES.items()
                        if row.get(column) is not None
                    }
                    page = page_of(head, self._folder, _STATE, _PERIODIC)
                    rank = page.identity["rank"]
                    by_name[name].ranks.add(rank)
                    page = replace(page, path=page_in(self._folder, rank))
                    self._add(by_name[name], page)
                except (PageError, KeyError, TypeError) as error:
                    refused.append(str(error))
                    continue
                for suffix, side in sides.items():
                    page.path.with_suffix(suffix).write_bytes(side)
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
                self._nodes.append(node := NodeRows(name, ()))
                by_name[name] = node
            try:
                self._add(by_name[name], page)
            except PageError as error:
                self._contents.losses.append(str(error))
                continue
            by_name[name].ranks.add(rank)
            by_name[name].rings[rank] = ring.take()

    def _add(self, node: NodeRows, page: Page) -> None:
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
        seen, shares = dict[bytes, Survey](), dict[int, float]()
        survey = partial(self._reader.survey, is_sampled(self.pages))
        for node, surveyed in self._ask_nodes(survey):
            # Most ranks have the same steps.
            node.surveyed = [seen.setdefault(each.tobytes(), each) for each in surveyed]
            for page, rows in zip(node.pages, surveyed, strict=True):
                num_read = len(rows) + (self.thinned.num_thinned if self.thinned else 0)
                shares[page.identity["rank"]] = num_read / max(1, page.state["steps"])
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
        counts = [page.state["steps"] for page in self.pages]
        self._num_damaged_before = self.num_damaged
        self._num_surveyed = sum(
            min(1.0, shares[page.identity["rank"]]) * page.state["steps"] for page in self.pages
        )
        if self.pages and self._contents.losses:
            # Whoever is not read may have done as much as any other.
            num_missing = self.pages[0].identity["world_size"] - len(counts)
            counts.append(max(counts) * num_missing)
        self._num_steps = sum(counts)


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
