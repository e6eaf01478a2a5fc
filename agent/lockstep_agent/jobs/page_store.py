"""Every rank page of the node, read at most once a tick however many collectors need it.

The collectors that share a store run in threads of their own. A file system that hangs holds up
those that ask for the page in question, or for the list of jobs, and no other worker of the agent.
An error in the files of one job costs that job's readings of a run and no other's.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from lockstep_agent.collector import AnyReading, Reading, is_servable
from lockstep_agent.jobs.job_snapshot import JobSnapshot, ListedJob, list_node, merge_folders
from lockstep_agent.sources.pods import PodNames
from lockstep_catalogue import agent
from lockstep_records.files.jobs import Roots
from lockstep_records.page.reader import PageReader

_log = logging.getLogger(__name__)
_LOG_SECONDS = 60.0
_MAX_LOGGED_JOBS = 10_000
_MAX_REASON_CHARACTERS = 300
_Result = TypeVar("_Result")
# A long listing may take a twentieth of the time: it grows with what strangers create.
_LONG_LISTING_SECONDS = 0.05
_LISTING_PAUSES, _MAX_PAUSE_SECONDS = 20, 10.0


class JobGuard:
    """Runs the work on each job by itself, for all collectors; counts and logs what is skipped.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._skipped: Counter[str] = Counter()
        self._next_log_seconds: dict[str, float] = {}

    def begin(self, collector: str) -> None:
        """Announces a collector, so that its counter begins with 0."""
        self._skipped.setdefault(collector, 0)

    def run(
        self, collector: str, job: "JobSnapshot", work: Callable[["JobSnapshot"], Iterable[_Result]]
    ) -> tuple[_Result, ...]:
        """Results for one job, all or none."""
        try:
            return tuple(work(job))
        except Exception as error:  # noqa: BLE001  # a job's files cost no other job its readings
            self.skip(collector, job, f"{type(error).__name__}: {error}")
            return ()

    def servable(
        self, collector: str, job: "JobSnapshot", readings: tuple[AnyReading, ...]
    ) -> tuple[AnyReading, ...]:
        """The readings whose numbers can be served."""
        if all(map(is_servable, readings)):
            return readings
        bad = next(each for each in readings if not is_servable(each))
        self.skip(collector, job, f"{bad.metric.name} is not a number that can be served")
        return tuple(filter(is_servable, readings))

    def skip(self, collector: str, job: "JobSnapshot", reason: str) -> None:
        """Counts a job, or a reading of it, that a collector leaves out."""
        with self._lock:
            self._skipped[collector] += 1
        self.log(job, f"{collector} skips it: {reason}")

    def log(self, job: "JobSnapshot", reason: str) -> None:
        """Logs a refusal that concerns a job, once a minute a job at most."""
        now = self._clock()
        with self._lock:
            if now < self._next_log_seconds.get(job.job_id, now):
                return
            if len(self._next_log_seconds) >= _MAX_LOGGED_JOBS:
                self._next_log_seconds.clear()
            self._next_log_seconds[job.job_id] = now + _LOG_SECONDS
        _log.warning(
            "job=%s owner=%d folder=%s reason=%r",
            job.job_id,
            job.owner,
            job.folder,
            reason[:_MAX_REASON_CHARACTERS],
        )

    def readings(self) -> Iterator[Reading]:
        """How often each collector has left a job out."""
        for collector, count in sorted(self._skipped.copy().items()):
            yield Reading(agent.JOBS_SKIPPED, (collector,), count)


class PageStore:
    """Hands out the jobs of the node; the first request of a tick lists them again.

    Args:
        root: folder that holds ``jobs/``, or several; they may be created later.
        max_age_seconds: how long a list of jobs serves, half a tick in an agent: longer than the
            collectors of one tick are apart, shorter than the pause to the next. 0 always reads.
        clock: monotonic, in seconds.
        pods: names of the pods in whose volumes jobs are; None for none.

    Attributes:
        guard: contains what a job's files do to a collector.
    """

    def __init__(
        self,
        root: Roots,
        procfs: Path,
        max_age_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        cluster: str = "local",
        pods: PodNames | None = None,
    ) -> None:
        self._root, self._procfs, self._cluster = root, procfs, cluster
        self._max_age_seconds, self._clock = max_age_seconds, clock
        self._lock = threading.Lock()
        self._readers: dict[Path, PageReader] = {}
        self._jobs: tuple[JobSnapshot, ...] = ()
        self._owners: dict[str, int] = {}
        self._pods = pods or PodNames(Path())
        self._folders: frozenset[Path] = frozenset()
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
        for bound in agent.LISTING_BOUNDS:
            yield Reading(agent.JOBS_CUT, (bound,), self._num_cut[bound])
        yield from self.guard.readings()

    def owner_of(self, job_id: str) -> int | None:
        """User id of a job's folder as last listed; None for no job of this node."""
        return self._owners.get(job_id)

    def _list(self) -> tuple[JobSnapshot, ...]:
        folders, self._num_cut = list_node(self._root)
        self._pods.forget_others({job.folder.parents[1] for job in folders})
        listed = self._merge(folders)
        paths = {path for job in listed for pages in job.attempts for path in pages}
        # A reader remembers the bytes of the last time; that of a page that is gone is let go.
        self._readers = {path: each for path, each in self._readers.items() if path in paths}
        self._owners = {job.folder.name: job.owner for job in listed}
        self._folders = frozenset(folder for job in listed for folder in job.folders)
        jobs = tuple(self._snapshot(job) for job in listed)
        for job, snapshot in zip(listed, jobs, strict=True):
            if job.bound:
                self.guard.log(snapshot, f"more {job.bound} than a user may have; it is cut")
        return jobs

    def _snapshot(self, job: ListedJob) -> JobSnapshot:
        pods = {folder: self._pods.pod_of(folder) for folder in job.folders}
        return JobSnapshot(job, self._cluster, self._readers, self._procfs, pods)

    def _merge(self, folders: list[ListedJob]) -> list[ListedJob]:
        """Jobs out of folders: those of one id, user and namespace are one job.

        An id is of those who had it first; another user's or namespace's job of it is left out.
        """
        by_id: dict[str, list[ListedJob]] = {}
        for each in sorted(folders, key=lambda job: job.folder not in self._folders):
            by_id.setdefault(each.folder.name, []).append(each)
        jobs = []
        for same_id in by_id.values():
            own = [job for job in same_id if self._party(job) == self._party(same_id[0])]
            jobs.append(merge_folders(own) if len(own) > 1 else own[0])
            for job in same_id:
                if job not in own:
                    self.guard.log(self._snapshot(job), "another user or namespace has this job id")
        return sorted(jobs, key=lambda job: job.folder.name)

    def _party(self, job: ListedJob) -> tuple[int, str]:
        return job.owner, self._pods.pod_of(job.folder).namespace
