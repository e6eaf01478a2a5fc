"""Copies pages and events of jobs to an archive, in a child process that cannot hold up the agent.

The child is ``python -m lockstep_agent.delivery.archive ROOT URL``. It ends with the agent, because
the end of the agent closes its stdin. It writes URL/jobs/JOB_ID/ATTEMPT/rank-00003.page, the layout
of the node, so that ``lockstep report`` reads a job's folder in the archive like one on the node.
"""

import hashlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep_agent.collector import Reading, Tier
from lockstep_catalogue import health
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.events import FILE_NAME, is_finished, read_events
from lockstep_records.job_retention import note_archive
from lockstep_records.jobs import list_attempts, list_jobs, list_pages
from lockstep_records.last_output import ERROR_SUFFIX, OUTPUT_SUFFIX
from lockstep_records.page.reader import PageError, read_page

_log = logging.getLogger(__name__)

_POLL_SECONDS = 10.0
_SILENT_SECONDS = 60.0  # the child reports after every file, and once a poll at least
_BESIDE_PAGES = (OUTPUT_SUFFIX, ERROR_SUFFIX)
_RUNNING_PAGE_SECONDS = 300.0
# Lowest priority: a copy has time, the job on the same node has not.
_NICE = 19
_BAD_ADDRESS = 2
# protocols under which a reader sees a file while it is being written
_SHOWS_PARTIAL_FILES = {"file", "local", "sftp", "ssh", "smb", "hdfs"}


class Archive:
    """Runs the child process, restarts it when it ended, and reports its counts.

    Args:
        root: folder that holds ``jobs/``.
        url: of the archive; None archives nothing.
        silent_seconds: a child that reports nothing for so long waits for storage that does not
            answer, which is logged once. No second child is started: it would wait there too.
    """

    name = "archive"
    tier = Tier.TEN_SECONDS

    def __init__(
        self, root: Path, url: str | None, *, silent_seconds: float = _SILENT_SECONDS
    ) -> None:
        self._silent_seconds = silent_seconds
        self._reported_seconds = 0.0
        self._is_silent = False
        self._command = [
            sys.executable,
            "-m",
            "lockstep_agent.delivery.archive",
            str(root),
            url or "",
        ]
        self._url = url
        self._child: subprocess.Popen[bytes] | None = None
        self._earlier_counts = {"copied": 0, "failed": 0}
        self._child_counts = {"copied": 0, "failed": 0}
        self._partial_line = b""

    def collect(self) -> Iterator[Reading]:
        """Files copied and not copied, over all child processes of this agent."""
        if self._url is not None:
            self._supervise()
        for outcome, earlier in self._earlier_counts.items():
            count = earlier + self._child_counts[outcome]
            yield Reading(health.ARCHIVED_FILES, (outcome,), count)

    def _supervise(self) -> None:
        if self._child is not None:
            self._read_reports(self._child)
            # A bad address stays bad: a new child would refuse it every ten seconds.
            if self._child.poll() not in {None, _BAD_ADDRESS}:
                self._child = None
        if self._child is None:
            self._earlier_counts = {
                outcome: count + self._child_counts[outcome]
                for outcome, count in self._earlier_counts.items()
            }
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


@dataclass(frozen=True, slots=True)
class _Copy:
    """The last copy of a file.

    Attributes:
        digest: of its content.
        due_seconds: when the file is read again, by the monotonic clock.
        is_final: whether nothing more is written into the file.
    """

    digest: bytes
    due_seconds: float
    is_final: bool


class Copier:
    """Copies what changed: ended pages and events at once, pages of running ranks every 5 minutes.

    Args:
        root: folder that holds ``jobs/``.
        files: an fsspec file system.
        target: path in it.
        clock: monotonic, in seconds.
        report: called with the counts after each file that was copied.

    Attributes:
        counts: files by outcome, ``copied`` or ``failed``.
    """

    def __init__(
        self,
        root: Path,
        files: Any,
        target: str,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[dict[str, int]], None] = lambda _: None,
    ) -> None:
        self._report = report
        self._root, self._files, self._target = root, files, target.rstrip("/")
        self._clock = clock
        self._copies: dict[Path, _Copy] = {}
        self._can_note = True
        self.counts = {"copied": 0, "failed": 0}

    def copy(self) -> None:
        """Copies what is due, once over all jobs; a file that fails is tried again next time."""
        archived = []
        paths_by_job = {job: _list_files(job) for job in list_jobs(self._root)}
        paths = [path for files in paths_by_job.values() for path in files]
        self._copies = {path: self._copies[path] for path in paths if path in self._copies}
        for job, files in paths_by_job.items():
            # Asked before: what ends in between is copied once more, and is whole the next time.
            is_over = _is_over(job)
            copied = [self._try_copy(path) for path in files]
            if is_over and all(copied):
                archived.append(job.name)
        self._note(archived)

    def _try_copy(self, path: Path) -> bool:
        try:
            self._copy(path)
        except OSError as error:
            self.counts["failed"] += 1
            _print_error(f"{path}: {error}")
            return False
        return True

    def _note(self, archived: list[str]) -> None:
        """Launchers remove no job that is not in the archive yet."""
        try:
            note_archive(self._root, archived)
        except OSError as error:
            if self._can_note:
                _print_error(f"{self._root}: {error}; ended jobs may go before they are archived")
            self._can_note = False

    def _copy(self, path: Path) -> None:
        last = self._copies.get(path)
        if last is not None and (last.is_final or self._clock() < last.due_seconds):
            return
        is_page = path.suffix == ".page"
        # Asked before the page is read: one that ends in between is copied once more.
        is_final = is_page and _has_ended(path)
        content = path.read_bytes()
        # A CRC would not do: it cannot tell apart data that ends with its own CRC.
        digest = hashlib.blake2b(content).digest()
        if last is None or digest != last.digest:
            self._put(f"{self._target}/{path.relative_to(self._root).as_posix()}", content)
            self.counts["copied"] += 1
            self._report(self.counts)
        is_running = is_page and not _is_over(path.parents[1])
        wait_seconds = _RUNNING_PAGE_SECONDS if is_running else 0.0
        self._copies[path] = _Copy(digest, self._clock() + wait_seconds, is_final)

    def _put(self, target: str, content: bytes) -> None:
        """Writes a file so that no reader meets a part of it.

        Object stores show a file when it is complete; elsewhere it is written under another name
        and moved.
        """
        folder, _, name = target.rpartition("/")
        self._files.makedirs(folder, exist_ok=True)
        protocol = self._files.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        if not _SHOWS_PARTIAL_FILES & names:
            self._files.pipe_file(target, content)
            return
        temporary_path = f"{folder}/.{name}.part"
        self._files.pipe_file(temporary_path, content)
        self._files.mv(temporary_path, target)


def _list_files(job: Path) -> list[Path]:
    """Events, pages and last outputs of a job; none when its folder is being removed."""
    try:
        events = [job / FILE_NAME] if (job / FILE_NAME).is_file() else []
        pages = [page for attempt in list_attempts(job) for page in list_pages(attempt)]
        sidecars = (page.with_suffix(suffix) for page in pages for suffix in _BESIDE_PAGES)
        return [*events, *pages, *(path for path in sidecars if path.is_file())]
    except OSError:
        return []


def _is_over(job: Path) -> bool:
    """Whether the launcher has written the end of a job."""
    return is_finished(read_events(job))


def _has_ended(path: Path) -> bool:
    try:
        return read_page(path).phase in ENDED_PHASES
    except PageError:
        return False


def _print_error(text: str) -> None:
    print(f"lockstep archive: {text}", file=sys.stderr, flush=True)  # noqa: T201  # the child's log


def _print_counts(counts: dict[str, int]) -> None:
    print(json.dumps(counts), flush=True)  # noqa: T201  # the agent reads it


def _main(root: str, url: str) -> None:
    import fsspec  # noqa: PLC0415  # only the child needs it

    os.nice(_NICE)
    try:
        files, target = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        print(f"lockstep agent: --archive {url}: {error}", file=sys.stderr)  # noqa: T201  # the child's log
        sys.exit(_BAD_ADDRESS)
    copier = Copier(Path(root), files, target, report=_print_counts)
    _print_counts(copier.counts)
    while True:
        copier.copy()
        _print_counts(copier.counts)
        # The end of the agent closes stdin, which ends the wait at once.
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
