"""Copies jobs to an archive, in a child process that cannot hold up the agent.

The child is ``python -m lockstep_agent.delivery.archive URL ROOT...``. It ends with the agent,
because the end of the agent closes its stdin. It writes URL/jobs/JOB_ID/ATTEMPT/rank-00003.page,
the layout of the node, while a rank runs. Finished stretches of steps become columns, and once an
attempt has ended these replace its pages (docs/formats/archive.md).
"""

import hashlib
import json
import logging
import math
import os
import re
import select
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep_agent.collector import Reading, Tier
from lockstep_catalogue import agent
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.archive.store import put_file
from lockstep_records.events.event import FILE_NAME, MAX_EVENTS_BYTES, is_finished, read_events
from lockstep_records.file_access import foreign_files
from lockstep_records.files import jobs as job_files
from lockstep_records.files.job_status import note_archive
from lockstep_records.files.jobs import Roots
from lockstep_records.page.reader import PageError, read_page

if TYPE_CHECKING:
    from lockstep_records.archive.writer import ColumnWriter

MAX_FILE_BYTES = 256 << 20
"""The largest page has 134 MB."""
MAX_JOB_BYTES, MAX_JOB_FILES = 16 << 30, 1 << 14
MAX_ROUND_BYTES = 1 << 30
"""Most that is read of one user's files between two pauses; the rest comes after the pause."""
_DUMPS = ("stacks", "progress.json", "flight.json")
_COPIED = re.compile(
    rf"rank-[0-9]{{5,}}(\.nccl)?\.({'|'.join(('page', 'stderr', 'error.json', *_DUMPS))})"
)
_RUNNING_PAGE_SECONDS = 300.0
_ERROR_SECONDS = 60.0
_EVENTS_COST = 16  # reading a byte of events takes as long as hashing sixteen


@dataclass(frozen=True, slots=True)
class _Copy:
    """The last copy of a file.

    Attributes:
        size_bytes: of its content.
        due_seconds: when the file is read again, by the monotonic clock.
        is_final: whether nothing more is written into the file.
    """

    digest: bytes
    size_bytes: int
    due_seconds: float
    is_final: bool


_PACKED = _Copy(digest=b"", size_bytes=0, due_seconds=math.inf, is_final=True)


class _LateError(OSError):
    """A file whose user has had the share of this round."""


class Copier:
    """Copies what changed: ended pages and events at once, pages of running ranks every 5 minutes.

    Args:
        root: folder that holds ``jobs/``, or several.
        files: an fsspec file system.
        target: path in it.
        clock: monotonic, in seconds.
        report: called with the counts after each file that was copied.
        packs: whether finished stretches become columns, which takes pyarrow.

    Attributes:
        counts: files by outcome, ``copied`` or ``failed``.
    """

    def __init__(
        self,
        root: job_files.Roots,
        files: Any,
        target: str,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[dict[str, int]], None] = lambda _: None,
        *,
        packs: bool = False,
    ) -> None:
        self._report, self._packs = report, packs
        self._writers: dict[Path, ColumnWriter] = {}
        self._root, self._files, self._target = root, files, target.rstrip("/")
        self._clock = clock
        self._copies: dict[Path, dict[Path, _Copy]] = {}
        self._owners: dict[Path, int] = {}
        self._error_seconds: dict[Path, float] = {}
        self._round_bytes: dict[int, int] = {}
        self.counts = {"copied": 0, "failed": 0}

    def copy(self) -> None:
        """Copies what is due, once over all jobs; a file that fails is tried again next time."""
        archived = []
        jobs = job_files.list_jobs(self._root)
        self._copies = {job: self._copies[job] for job in jobs if job in self._copies}
        self._owners = {job: self._owners[job] for job in jobs if job in self._owners}
        self._writers = {job: self._writers[job] for job in jobs if job in self._writers}
        self._error_seconds = {
            job: self._error_seconds[job]
            for job in (*jobs, *job_files.plain_roots(self._root))
            if job in self._error_seconds
        }
        self._round_bytes = defaultdict(int)
        for job in jobs:
            try:
                if self._copy_job(job, foreign_files.owner_of(job)):
                    archived.append(job)
            except OSError as error:  # it is being removed, or was replaced by a link
                self._print_error(job, str(error))
        # Launchers remove no job that is not in the archive yet.
        for root in job_files.plain_roots(self._root):
            try:
                note_archive(root, [job.name for job in archived if job.parents[1] == root])
            except OSError as error:
                reason = f"{error}; ended jobs may go before they are archived"
                self._print_error(root, reason)

    def _copy_job(self, job: Path, owner: int) -> bool:
        """Copies the files of a job that are due; whether the job is over and in the archive."""
        self._pin_owner(job, owner)
        # Asked before: what ends in between is copied once more, and is complete the next time.
        is_over = self._is_over(job, owner)
        before = self._copies.get(job, {})
        copies = self._copies[job] = {}
        is_complete, packed = self._pack(job, owner, is_over=is_over)
        job_bytes = 0
        for path in islice(_list_files(job), MAX_JOB_FILES):
            last = before.get(path)
            try:
                if path in packed:
                    copies[path] = self._drop_copy(job, path, last)
                    continue
                is_due = last is None or not (last.is_final or self._clock() < last.due_seconds)
                if is_due:
                    last = self._copy(job, path, last, MAX_JOB_BYTES - job_bytes, is_over=is_over)
            except FileNotFoundError:
                continue
            except OSError as error:
                # What is refused stays refused: the job is complete without it.
                is_complete = is_complete and isinstance(error, foreign_files.ForeignFileError)
                self.counts["failed"] += 1
                self._print_error(job, f"user {owner}: {error}")
            if last is not None:
                copies[path] = last
                job_bytes += last.size_bytes
        return is_over and is_complete

    def _pack(self, job: Path, owner: int, *, is_over: bool) -> tuple[bool, AbstractSet[Path]]:
        """Whether all of a job that is finished is in columns, and the files that are."""
        if not self._packs:
            return True, frozenset()
        # pyarrow takes as much memory as the child without it: only once there is a job.
        from lockstep_records.archive.writer import ColumnWriter, Store  # noqa: PLC0415  # see above

        if job not in self._writers:
            take = partial(self._take_share, owner)
            self._writers[job] = ColumnWriter(job, Store(self._get_column, self._put_column), take)
        writer = self._writers[job]
        try:
            writer.pack(owner, is_over=is_over)
        except OSError as error:
            self.counts["failed"] += 1
            self._print_error(job, f"user {owner}: {error}")
            return False, writer.packed
        return True, writer.packed

    def _get_column(self, path: str) -> bytes:
        data: bytes = self._files.cat_file(f"{self._target}/jobs/{path}")
        return data

    def _put_column(self, path: str, data: bytes) -> None:
        put_file(self._files, f"{self._target}/jobs/{path}", iter([data]), len(data))
        self.counts["copied"] += 1
        self._report(self.counts)

    def _drop_copy(self, job: Path, path: Path, last: _Copy | None) -> _Copy:
        """Removes a copy that columns replace."""
        target = self._target_of(job, path)
        if last is not _PACKED and self._files.exists(target):
            self._files.rm_file(target)
        return _PACKED

    def _target_of(self, job: Path, path: Path) -> str:
        return f"{self._target}/jobs/{path.relative_to(job.parent).as_posix()}"

    def _pin_owner(self, job: Path, owner: int) -> None:
        """Reserves a job's id in the archive for its first owner, for ever.

        Raises:
            ForeignFileError: another user's job of this id is in the archive.
        """
        if job not in self._owners:
            path = f"{self._target}/owners/{job.name}"
            try:
                self._owners[job] = int(self._files.cat_file(path))
            except FileNotFoundError:
                put_file(self._files, path, iter([str(owner).encode()]), 0)
                self._owners[job] = owner
        if self._owners[job] != owner:
            reason = f"the archive has a job of this id of user {self._owners[job]}"
            raise foreign_files.ForeignFileError(job, f"{reason}, not {owner}; it is not copied")

    def _copy(
        self, job: Path, path: Path, last: _Copy | None, job_bytes: int, *, is_over: bool
    ) -> _Copy:
        owner, is_page = self._owners[job], path.suffix == ".page"
        # Asked before the page is read: one that ends in between is copied once more.
        is_final = is_page and _has_ended(path)
        with foreign_files.open_foreign(path, owner=owner) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > min(MAX_FILE_BYTES, job_bytes):
                reason = f"it has {size} bytes, of at most {MAX_FILE_BYTES} a file"
                raise foreign_files.ForeignFileError(path, f"{reason} and {MAX_JOB_BYTES} a job")
            self._take_share(owner, size)
            # A CRC would not do: it cannot tell apart data that ends with its own CRC.
            digest = hashlib.blake2b()
            for chunk in foreign_files.read_chunks(descriptor, size):
                digest.update(chunk)
            if last is None or digest.digest() != last.digest:
                os.lseek(descriptor, 0, os.SEEK_SET)
                chunks = foreign_files.read_chunks(descriptor, size)
                put_file(self._files, self._target_of(job, path), chunks, size)
                self.counts["copied"] += 1
                self._report(self.counts)
        is_large = is_page or path.name.endswith(_DUMPS)
        wait_seconds = _RUNNING_PAGE_SECONDS if is_large and not is_over else 0.0
        return _Copy(digest.digest(), size, self._clock() + wait_seconds, is_final)

    def _take_share(self, owner: int, size: int) -> None:
        if self._round_bytes[owner] + size > MAX_ROUND_BYTES:
            raise _LateError(f"more than {MAX_ROUND_BYTES} bytes at a time; the rest follows")
        self._round_bytes[owner] += size

    def _is_over(self, job: Path, owner: int) -> bool:
        """Whether the launcher has written the end of a job."""
        try:
            size = min(MAX_EVENTS_BYTES, (job / FILE_NAME).lstat().st_size)
            self._take_share(owner, _EVENTS_COST * size)
        except OSError:
            return False  # no file yet, or this round has no time left
        return is_finished(read_events(job))

    def _print_error(self, subject: Path, text: str) -> None:
        now = self._clock()
        if now - self._error_seconds.get(subject, -_ERROR_SECONDS) >= _ERROR_SECONDS:
            self._error_seconds[subject] = now
            print(f"lockstep archive: {subject.name}: {text}", file=sys.stderr, flush=True)  # noqa: T201  # the child's log


def _list_files(job: Path) -> Iterator[Path]:
    """Paths of the events, pages and last outputs of a job; the events may be absent."""
    yield job / FILE_NAME
    for attempt in job_files.list_attempts(job):
        names = foreign_files.scan_foreign(attempt, _COPIED, job_files.MAX_ENTRIES)
        yield from (attempt / name for name in nsmallest(MAX_JOB_FILES, names))


def _has_ended(path: Path) -> bool:
    try:
        return read_page(path).phase in ENDED_PHASES
    except PageError:
        return False


_log = logging.getLogger(__name__)

_POLL_SECONDS = 10.0
_SILENT_SECONDS = 60.0  # the child reports after every file, and once a poll at least
# Lowest priority: a copy has time, the job on the same node has not.
_NICE = 19
_BAD_ADDRESS = 2


class Archive:
    """Runs the child process, restarts it when it ended, and reports its counts.

    Args:
        root: folder that holds ``jobs/``, or several.
        url: of the archive; None archives nothing.
        silent_seconds: a child that reports nothing for so long waits for storage that does not
            answer, which is logged once. No second child is started: it would wait there too.
    """

    name = "archive"
    tier = Tier.TEN_SECONDS

    def __init__(
        self, root: Roots, url: str | None, *, silent_seconds: float = _SILENT_SECONDS
    ) -> None:
        self._silent_seconds = silent_seconds
        self._reported_seconds = 0.0
        self._is_silent = False
        self._command = [
            *(sys.executable, "-P", "-m"),
            "lockstep_agent.delivery.archive",
            url or "",
            *map(str, (root,) if isinstance(root, Path) else root),
        ]
        self._url = url
        self._child: subprocess.Popen[bytes] | None = None
        self._earlier_counts = Counter(copied=0, failed=0)
        self._child_counts = {"copied": 0, "failed": 0}
        self._partial_line = b""

    def collect(self) -> Iterator[Reading]:
        """Files copied and not copied, over all child processes of this agent."""
        if self._url is not None:
            self._supervise()
        for outcome, earlier in self._earlier_counts.items():
            count = earlier + self._child_counts[outcome]
            yield Reading(agent.ARCHIVED_FILES, (outcome,), count)

    def _supervise(self) -> None:
        if self._child is not None:
            self._read_reports(self._child)
            # A bad address stays bad: a new child would refuse it every ten seconds.
            if self._child.poll() not in {None, _BAD_ADDRESS}:
                self._child = None
        if self._child is None:
            self._earlier_counts.update(self._child_counts)
            self._child_counts = {"copied": 0, "failed": 0}
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._note_report()
        elif time.monotonic() - self._reported_seconds > self._silent_seconds:
            self._log_silence(silent=self._child.poll() is None)

    def _note_report(self) -> None:
        self._reported_seconds = time.monotonic()
        self._log_silence(silent=False)

    def _log_silence(self, *, silent: bool) -> None:
        if silent and not self._is_silent:
            _log.warning("archive=silent url=%s after_seconds=%s", self._url, self._silent_seconds)
        elif self._is_silent and not silent:
            _log.info("archive=answers url=%s", self._url)
        self._is_silent = silent

    def _read_reports(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        descriptor = child.stdout.fileno()
        while select.select([descriptor], [], [], 0)[0]:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                break
            *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
            if lines:
                # The counts are totals, so the newest line is enough.
                self._child_counts = json.loads(lines[-1])
                self._note_report()


def _print_counts(counts: dict[str, int]) -> None:
    try:
        print(json.dumps(counts), flush=True)  # noqa: T201  # the agent reads it
    except BrokenPipeError:  # the agent is gone; an orderly exit would flush, and fail, once more
        os._exit(0)


def _main(url: str, *roots: str) -> None:
    import fsspec  # noqa: PLC0415  # only the child needs it

    os.nice(_NICE)
    os.umask(os.umask(0o077) | 0o027)  # as the unit has it: nobody else reads all users' output
    try:
        files, target = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        print(f"lockstep agent: --archive {url}: {error}", file=sys.stderr)  # noqa: T201  # the child's log
        sys.exit(_BAD_ADDRESS)
    # The copier itself prints what is refused, with the job.
    logging.getLogger("lockstep_records").addHandler(logging.NullHandler())
    copier = Copier(tuple(map(Path, roots)), files, target, report=_print_counts, packs=True)
    _print_counts(copier.counts)
    while True:
        copier.copy()
        _print_counts(copier.counts)
        # The end of the agent closes stdin, which ends the wait at once.
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
