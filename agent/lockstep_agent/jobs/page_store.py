"""Every rank page of the node, read at most once a tick however many collectors need it.

The collectors that share a store run in threads of their own. A file system that hangs holds up
those that ask for the page in question, or for the list of jobs, and no other worker of the agent.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lockstep_records.jobs import list_attempts, list_jobs, list_pages
from lockstep_records.liveness import RankProcess, find_process
from lockstep_records.page.reader import Page, PageError, PageReader


class JobSnapshot:
    """One job at one tick: the folder as listed at its begin, each page as first read in it.

    A page is read at its first request: a job that ended long ago may leave thousands of pages
    behind that no collector needs every second.

    Attributes:
        folder: of the job; its name is the job id.
        attempts: paths of the pages of each attempt, oldest attempt first; one may be empty.
    """

    def __init__(
        self,
        folder: Path,
        attempts: tuple[tuple[Path, ...], ...],
        readers: Mapping[Path, PageReader],
        procfs: Path,
    ) -> None:
        self.folder, self.attempts = folder, attempts
        self._readers, self._procfs = readers, procfs
        self._lock = threading.Lock()
        self._results: dict[Path, Page | PageError] = {}
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
        if isinstance(result, PageError):
            # A new one each time: raised again in another thread, the same one would carry and
            # keep alive the stack of the first.
            raise PageError(result.reason, str(result))
        return result

    def newest_pages(self) -> list[Page]:
        """Readable pages of the newest attempt, by rank; empty when there are none."""
        return list(self._readable(self.attempts[-1] if self.attempts else ()))

    def process(self, page: Page) -> RankProcess | None:
        """The process that wrote a page, asked of the kernel once in this tick; None once ended."""
        if page.path not in self._processes:
            self._processes[page.path] = find_process(page, self._procfs)
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

    def _read_page(self, path: Path) -> Page | PageError:
        try:
            return self._readers[path].read()
        except PageError as error:
            return error


class PageStore:
    """Hands out the jobs of the node; the first request of a tick lists them again.

    Args:
        root: folder that holds ``jobs/``; it may be created later.
        procfs: where /proc is mounted.
        max_age_seconds: how long a list of jobs serves, half a tick in an agent: longer than the
            collectors of one tick are apart, shorter than the pause to the next. 0 always reads.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        root: Path,
        procfs: Path,
        max_age_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._procfs = root, procfs
        self._max_age_seconds, self._clock = max_age_seconds, clock
        self._lock = threading.Lock()
        self._readers: dict[Path, PageReader] = {}
        self._jobs: tuple[JobSnapshot, ...] = ()
        self._expires_seconds = clock()

    def jobs(self) -> tuple[JobSnapshot, ...]:
        """Every job of the node, oldest name first.

        Raises:
            OSError: the root is there and cannot be listed.
        """
        with self._lock:
            now = self._clock()
            if now >= self._expires_seconds:
                self._jobs = self._list()
                self._expires_seconds = now + self._max_age_seconds
            return self._jobs

    def _list(self) -> tuple[JobSnapshot, ...]:
        listed = [(folder, _list_attempt_pages(folder)) for folder in list_jobs(self._root)]
        paths = [path for _, attempts in listed for pages in attempts for path in pages]
        # A reader remembers the bytes of the last time; that of a page that is gone is let go.
        self._readers = {path: self._readers.get(path) or PageReader(path) for path in paths}
        return tuple(
            JobSnapshot(folder, attempts, self._readers, self._procfs)
            for folder, attempts in listed
        )


def _list_attempt_pages(folder: Path) -> tuple[tuple[Path, ...], ...]:
    try:
        return tuple(tuple(list_pages(attempt)) for attempt in list_attempts(folder))
    except OSError:
        return ()  # the folder is being removed
