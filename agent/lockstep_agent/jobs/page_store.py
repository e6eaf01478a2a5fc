"""Every rank page of the node, read at most once a tick however many collectors need it.

The collectors that share a store run in threads of their own. A file system that hangs holds up
those that ask for the page in question, or for the list of jobs, and no other worker of the agent.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from lockstep_agent.collector import AnyReading, Reading
from lockstep_agent.jobs.job_guard import JobGuard
from lockstep_agent.jobs.listing import ListedJob, list_node
from lockstep_catalogue import health
from lockstep_records.liveness import RankProcess, find_process
from lockstep_records.page.reader import Page, PageError, PageReader

_Result = TypeVar("_Result")
# A long listing may take a twentieth of the time: it grows with what strangers create.
_LONG_LISTING_SECONDS = 0.05
_LISTING_PAUSES, _MAX_PAUSE_SECONDS = 20, 10.0
_Refusal = tuple[str, str]
"""Reason and text of a page that cannot be read."""


class JobSnapshot:
    """One job at one tick: the folder as listed at its begin, each page as first read in it.

    A page is read at its first request: a job that ended long ago may leave thousands of pages
    behind that no collector needs every second.

    Attributes:
        folder: of the job; its name is the job id.
        owner: user id of the folder; files of another user are not read.
        cluster: of the agent; that in a page is not trusted.
        attempts: paths of the pages of each attempt, oldest attempt first; one may be empty.
    """

    def __init__(
        self, listed: ListedJob, cluster: str, readers: dict[Path, PageReader], procfs: Path
    ) -> None:
        self.folder, self.owner, self.attempts = listed.folder, listed.owner, listed.attempts
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


class PageStore:
    """Hands out the jobs of the node; the first request of a tick lists them again.

    Args:
        root: folder that holds ``jobs/``; it may be created later.
        procfs: where /proc is mounted.
        max_age_seconds: how long a list of jobs serves, half a tick in an agent: longer than the
            collectors of one tick are apart, shorter than the pause to the next. 0 always reads.
        clock: monotonic, in seconds.
        cluster: of the agent.

    Attributes:
        guard: contains what a job's files do to a collector.
    """

    def __init__(
        self,
        root: Path,
        procfs: Path,
        max_age_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        cluster: str = "local",
    ) -> None:
        self._root, self._procfs, self._cluster = root, procfs, cluster
        self._max_age_seconds, self._clock = max_age_seconds, clock
        self._lock = threading.Lock()
        self._readers: dict[Path, PageReader] = {}
        self._jobs: tuple[JobSnapshot, ...] = ()
        self._owners: dict[str, int] = {}
        self._num_cut: Counter[str] = Counter()
        self._expires_seconds = clock()
        self.guard = JobGuard(clock)

    def jobs(self) -> tuple[JobSnapshot, ...]:
        """Every job of the node, oldest name first.

        Raises:
            OSError: the root is there and cannot be listed.
        """
        with self._lock:
            now = self._clock()
            if now >= self._expires_seconds:
                self._jobs = self._list()
                took_seconds = self._clock() - now
                pause_seconds = min(_LISTING_PAUSES * took_seconds, _MAX_PAUSE_SECONDS)
                is_slow = took_seconds > _LONG_LISTING_SECONDS
                self._expires_seconds = now + (pause_seconds if is_slow else self._max_age_seconds)
            return self._jobs

    def each(
        self, collector: str, work: Callable[[JobSnapshot], Iterable[_Result]]
    ) -> Iterator[_Result]:
        """Results of every job; one that fails is skipped, counted and logged."""
        self.guard.begin(collector)
        for job in self.jobs():
            yield from self.guard.run(collector, job, work)

    def readings(
        self, collector: str, work: Callable[[JobSnapshot], Iterable[AnyReading]]
    ) -> Iterator[AnyReading]:
        """As ``each``, without the readings whose numbers cannot be served."""
        self.guard.begin(collector)
        for job in self.jobs():
            yield from self.guard.servable(collector, job, self.guard.run(collector, job, work))

    def health(self) -> Iterator[Reading]:
        """How many jobs are cut, and how often one was skipped."""
        for bound in health.LISTING_BOUNDS:
            yield Reading(health.JOBS_CUT, (bound,), self._num_cut[bound])
        yield from self.guard.readings()

    def owner_of(self, job_id: str) -> int | None:
        """User id of a job's folder as last listed; None for no job of this node."""
        return self._owners.get(job_id)

    def _list(self) -> tuple[JobSnapshot, ...]:
        listed, self._num_cut = list_node(self._root)
        paths = {path for job in listed for pages in job.attempts for path in pages}
        # A reader remembers the bytes of the last time; that of a page that is gone is let go.
        self._readers = {path: each for path, each in self._readers.items() if path in paths}
        self._owners = {job.folder.name: job.owner for job in listed}
        jobs = tuple(JobSnapshot(job, self._cluster, self._readers, self._procfs) for job in listed)
        for job, snapshot in zip(listed, jobs, strict=True):
            if job.bound:
                self.guard.log(snapshot, f"more {job.bound} than a user may have; it is cut")
        return jobs
