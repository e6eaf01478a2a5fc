"""Copies pages and events of jobs to an archive, in a child process that cannot hold up the agent.

The child is ``python -m lockstep_agent.delivery.archive ROOT URL``; it ends with the agent, whose
end closes its stdin. What it writes is URL/jobs/JOB_ID/ATTEMPT/rank-00003.page, as on the node, so
that ``lockstep report`` reads a job's folder in the archive like one on the node.
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
from lockstep_records.jobs import list_attempts, list_jobs, list_pages
from lockstep_records.page.reader import PageError, read_page

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0
_SILENT_SECONDS = 60.0  # the child tells of every file, and of every look at least
_RUNNING_SECONDS = 300.0
_NICE = 19
_BAD_ADDRESS = 2
_SHOWS_HALVES = {"file", "local", "sftp", "ssh", "smb", "hdfs"}


class Archive:
    """Keeps the child process, starts it anew when it ended, and tells what it reports.

    Args:
        root: of the jobs.
        url: where to; None for nowhere.
        silent_seconds: a child that says nothing for so long stands before a disk that does not
            answer, which is said once. No other child is started: it would stand there too.
    """

    name = "archive"
    tier = Tier.TEN_SECONDS

    def __init__(
        self, root: Path, url: str | None, *, silent_seconds: float = _SILENT_SECONDS
    ) -> None:
        self._silent_seconds = silent_seconds
        self._heard_seconds = 0.0
        self._said_silent = False
        self._command = [
            sys.executable,
            "-m",
            "lockstep_agent.delivery.archive",
            str(root),
            url or "",
        ]
        self._url = url
        self._child: subprocess.Popen[bytes] | None = None
        self._before = {"copied": 0, "failed": 0}
        self._of_child = {"copied": 0, "failed": 0}
        self._rest = b""

    def collect(self) -> Iterator[Reading]:
        """Files copied and not copied, over all child processes of this agent."""
        if self._url is not None:
            self._look_after()
        for outcome, before in self._before.items():
            yield Reading(health.ARCHIVED_FILES, (outcome,), before + self._of_child[outcome])

    def _look_after(self) -> None:
        if self._child is not None:
            self._listen(self._child)
            if self._child.poll() not in {None, _BAD_ADDRESS}:
                self._child = None
        if self._child is None:
            self._before = {
                name: self._before[name] + self._of_child[name] for name in self._before
            }
            self._of_child = {"copied": 0, "failed": 0}
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._hear()
        elif time.monotonic() - self._heard_seconds > self._silent_seconds:
            self._say(silent=self._child.poll() is None)

    def _hear(self) -> None:
        self._heard_seconds = time.monotonic()
        self._say(silent=False)

    def _say(self, *, silent: bool) -> None:
        if silent and not self._said_silent:
            _log.warning("archive=silent url=%s after_seconds=%s", self._url, self._silent_seconds)
        elif self._said_silent and not silent:
            _log.info("archive=answers url=%s", self._url)
        self._said_silent = silent

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        descriptor = child.stdout.fileno()
        while select.select([descriptor], [], [], 0)[0]:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                break
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if lines:
                self._of_child = json.loads(lines[-1])
                self._hear()


@dataclass(frozen=True, slots=True)
class _Copied:
    """What was copied of a file; nothing is added to a page that has ended."""

    digest: bytes
    again_seconds: float
    ended: bool


class Copier:
    """Copies what changed: ended pages and events at once, pages of running ranks now and then.

    Args:
        files: an fsspec file system.
        target: path in it.
        clock: monotonic, in seconds.
        tell: called with the counts after each file that was copied.
    """

    def __init__(
        self,
        root: Path,
        files: Any,
        target: str,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[dict[str, int]], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self._root, self._files, self._target = root, files, target.rstrip("/")
        self._clock = clock
        self._copied: dict[Path, _Copied] = {}
        self.told = {"copied": 0, "failed": 0}

    def copy(self) -> None:
        """Goes once over all jobs; a file that cannot be copied is tried again next time."""
        there = list(self._found())
        self._copied = {path: self._copied[path] for path in there if path in self._copied}
        for path in there:
            try:
                self._copy(path)
            except OSError as error:
                self.told["failed"] += 1
                print(f"lockstep archive: {path}: {error}", file=sys.stderr, flush=True)  # noqa: T201  # the child's log

    def _found(self) -> Iterator[Path]:
        for job in list_jobs(self._root):
            try:
                if (job / FILE_NAME).is_file():
                    yield job / FILE_NAME
                for attempt in list_attempts(job):
                    yield from list_pages(attempt)
            except OSError:
                continue  # the folder is being removed

    def _copy(self, path: Path) -> None:
        known = self._copied.get(path)
        if known is not None and (known.ended or self._clock() < known.again_seconds):
            return
        is_page = path.name != FILE_NAME
        ended = is_page and _has_ended(path)
        body = path.read_bytes()
        digest = hashlib.blake2b(body).digest()  # a CRC cannot tell apart what ends with its own
        if known is None or digest != known.digest:
            where = f"{self._target}/{path.relative_to(self._root).as_posix()}"
            self._put(where, body)
            self.told["copied"] += 1
            self._tell(self.told)
        patience = _RUNNING_SECONDS if is_page and not _is_over(path) else 0.0
        self._copied[path] = _Copied(digest, self._clock() + patience, ended)

    def _put(self, where: str, body: bytes) -> None:
        """Object stores show a file when it is whole; elsewhere it is written beside and moved."""
        folder, _, name = where.rpartition("/")
        self._files.makedirs(folder, exist_ok=True)
        protocol = self._files.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        if not _SHOWS_HALVES & names:
            self._files.pipe_file(where, body)
            return
        beside = f"{folder}/.{name}.part"
        self._files.pipe_file(beside, body)
        self._files.mv(beside, where)


def _is_over(page: Path) -> bool:
    """Whether the launcher has said that the job of a page is over."""
    return is_finished(read_events(page.parents[1]))


def _has_ended(path: Path) -> bool:
    try:
        return read_page(path).phase in ENDED_PHASES
    except PageError:
        return False


def _tell(told: dict[str, int]) -> None:
    print(json.dumps(told), flush=True)  # noqa: T201  # how the agent is told


def _main(root: str, url: str) -> None:
    import fsspec  # noqa: PLC0415  # only the child needs it

    os.nice(_NICE)
    try:
        files, target = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        print(f"lockstep agent: --archive {url}: {error}", file=sys.stderr)  # noqa: T201  # the child's log
        sys.exit(_BAD_ADDRESS)
    copier = Copier(Path(root), files, target, tell=_tell)
    _tell(copier.told)
    while True:
        copier.copy()
        _tell(copier.told)
        if select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
