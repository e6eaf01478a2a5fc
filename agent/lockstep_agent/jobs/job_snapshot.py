"""One job at one tick, as every collector sees it."""

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from lockstep_agent.jobs.listing import ListedJob
from lockstep_agent.sources.pods import Pod
from lockstep_records.page.liveness import RankProcess, find_process
from lockstep_records.page.reader import Page, PageError, PageReader

_Refusal = tuple[str, str]
"""Reason and text of a page that cannot be read."""


class JobSnapshot:
    """One job at one tick: the folder as listed at its begin, each page as first read in it.

    A page is read at its first request: a job that ended long ago may leave thousands of pages
    behind that no collector needs every second.

    Attributes:
        folder: of the job; its name is the job id. Of several pods the first one's.
        folders: of all its pods.
        pods: whose volume each folder is in.
        owner: user id of the folder; files of another user are not read.
        cluster: of the agent; that in a page is not trusted.
        attempts: paths of the pages of each attempt, oldest attempt first; one may be empty.
    """

    def __init__(
        self,
        listed: ListedJob,
        cluster: str,
        readers: dict[Path, PageReader],
        procfs: Path,
        pods: Mapping[Path, Pod] | None = None,
    ) -> None:
        self.folder, self.owner, self.attempts = listed.folder, listed.owner, listed.attempts
        self.folders, self.pods = listed.folders, pods or {}
        self.cluster, self._readers, self._procfs = cluster, readers, procfs
        self._lock = threading.Lock()
        self._results: dict[Path, Page | _Refusal] = {}
        self._processes: dict[Path, RankProcess | None] = {}

    @property
    def job_id(self) -> str:
        """Name of the job's folder; the job id inside a page is not trusted."""
        return self.folder.name

    @property
    def paths(self) -> list[Path]:
        """Paths of the pages of all attempts."""
        return [path for attempt in self.attempts for path in attempt]

    def read(self, path: Path) -> Page:
        """One page, the same object for all requests of this tick.

        Raises:
            PageError: it cannot be read.
        """
        with self._lock:
            result = self._results.get(path)
            if result is None:
                result = self._results[path] = self._read_page(path)
        if isinstance(result, tuple):
            raise PageError(*result)
        return result

    def newest_pages(self) -> list[Page]:
        """Readable pages of the newest attempt, by rank; empty when there are none."""
        return list(self._readable(self.attempts[-1] if self.attempts else ()))

    def process(self, page: Page) -> RankProcess | None:
        """The process that wrote a page, asked of the kernel once in this tick; None once ended.

        A page may name any process: one of another user is not looked at.
        """
        if page.path not in self._processes:
            self._processes[page.path] = self._own_process(page)
        return self._processes[page.path]

    def is_running(self, page: Page) -> bool:
        """Whether the process that wrote a page still runs."""
        return self.process(page) is not None

    def _readable(self, paths: tuple[Path, ...]) -> Iterator[Page]:
        for path in paths:
            try:
                yield self.read(path)
            except PageError:
                continue  # counted by the collector `ranks`, which asks for every page

    def _own_process(self, page: Page) -> RankProcess | None:
        process = find_process(page, self._procfs)
        if process is None or process.pid is None:
            return process
        if user_of(self._procfs, process.pid) == self.owner:
            return process
        # That the lock is held is the kernel's word; a number alone is the page's.
        return RankProcess(None) if page.identity["locked"] else None

    def _read_page(self, path: Path) -> Page | _Refusal:
        # Only what was a page once has a reader: thousands of other files cost no memory.
        reader = self._readers.pop(path, None) or PageReader(path, self.owner)
        try:
            page = reader.read()
        except PageError as error:
            return error.reason, str(error)
        self._readers[path] = reader
        return page


def user_of(procfs: Path, pid: int) -> int | None:
    """User id of a process; None where it has ended or is not visible."""
    try:
        return os.stat(f"{procfs}/{pid}").st_uid  # noqa: PTH116  # for each rank in each tick
    except OSError:
        return None
