"""Jobs that tell nothing of themselves, as the watches of one node see them: one table of sources.

Each watch looks in a thread of its own and hands out the same kind of job. Where several see a job,
the one with most to say of its progress speaks for it: progress that anybody sees is progress.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from lockstep_agent.collector import Reading
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.sources.job_processes import JobProcess, ProcessFinder
from lockstep_agent.sources.pods import Pod, PodNames
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_outcomes.progress.launch_finding import Kind, LaunchFinding

_log = logging.getLogger(__name__)
MAX_JOBS = 64
"""Of a user, that a watch follows."""
_MAX_LOGGED = 1024
_FORGET_SECONDS = 300.0
_ORDER: tuple[Kind | None, ...] = (
    *("moving", "hang", "suspect", "still", "unseen", "starting", "ending"), None,
)  # fmt: skip


@dataclass(slots=True)
class RankTotals:
    """What a rank has done since it was first seen.

    Attributes:
        moved_seconds: wall clock of its last sign of progress; None without one.
        collectives: completed, by a value of the label ``kind``.
        steps: None while they are unknown.
        phase_seconds: of those steps; empty while they are unknown.
    """

    moved_seconds: float | None = None
    collectives: Mapping[str, int] = field(default_factory=dict)
    steps: int | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedJob:
    """A job as its processes and a watch show it.

    Attributes:
        seen_by: the watch, a value of the label of that name.
        user: of its processes, by the kernel.
        processes: of this node, one a rank where ranks are known, by rank.
        pods: of the processes, by pid.
        finding: on its progress; None where none is known.
        limit_seconds: for which it has to stand before ranks are named.
        polls: that showed something so far.
        answered_seconds: wall clock of the newest.
        moved_seconds: wall clock of the last poll that showed progress; None without one.
        first_seconds: wall clock at which it was first seen.
        has_pages: whether ranks of it tell of themselves.
        totals: by rank, where the watch counts.
    """

    seen_by: str
    job_id: str
    user: int
    processes: tuple[JobProcess, ...]
    pods: Mapping[int, Pod]
    finding: LaunchFinding | None
    limit_seconds: float
    polls: int
    answered_seconds: float
    moved_seconds: float | None
    first_seconds: float
    has_pages: bool
    totals: Mapping[int, RankTotals] = field(default_factory=dict)

    @property
    def kind(self) -> Kind | None:
        """Of the finding."""
        return self.finding.kind if self.finding else None


Process = TypeVar("Process", bound=JobProcess)


@dataclass(slots=True, kw_only=True)
class FollowedJob(Generic[Process]):
    """What a watch knows of a job, first of all the processes that run now."""

    first_seconds: float
    seen_seconds: float = 0.0
    processes: list[Process] = field(default_factory=list)


Followed = TypeVar("Followed", bound=FollowedJob[Any])
Key = tuple[int, str]
"""User and id of a job."""


class Watch(Generic[Process, Followed]):
    """Sees jobs; ``run_once`` looks anew, and may take as long as it needs.

    Args:
        pages: of the jobs that tell of themselves; their ids are their users'.
        timeout_seconds: of a stop; 0 judges none.
        wall_clock: seconds since 1970.

    Attributes:
        jobs: as of the last run.
        followed: by user and id, also those that had processes until lately.
    """

    name: str
    poll_seconds: float
    of_job: type[Followed]

    def __init__(
        self,
        pages: PageStore,
        processes: ProcessFinder[Process],
        pod_names: PodNames,
        timeout_seconds: float,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._pages, self._processes, self._pod_names = pages, processes, pod_names
        self._timeout_seconds, self._clock = timeout_seconds, wall_clock
        self.followed: dict[Key, Followed] = {}
        self._logged: set[str] = set()
        self.jobs: tuple[WatchedJob, ...] = ()

    def run_once(self) -> None:
        """Finds the jobs and what there is to know of them."""
        now, ids = self._clock(), ids_of_pages(self._pages)
        for job in self.followed.values():
            job.processes = []
        for process in self._processes.find():
            self._follow(process, ids, now)
        for reason in self._processes.refusals:
            self._log_once(f"state=unseen reason={reason!r}")
        recent = now - _FORGET_SECONDS
        self.followed = {k: job for k, job in self.followed.items() if job.seen_seconds >= recent}
        self._learn(now)
        self.jobs = tuple(
            view
            for key, job in sorted(self.followed.items(), key=lambda item: item[0])
            if job.processes and (view := self._view(key, job, ids, now))
        )

    def readings(self) -> Iterator[Reading]:
        """Of the watch itself."""
        yield from ()

    def _learn(self, now: float) -> None:
        """Finds what there is to know of the jobs that are followed."""
        raise NotImplementedError

    def _view(
        self, key: Key, job: Followed, ids: Mapping[int, str], now: float
    ) -> WatchedJob | None:
        """The job as it is known now; ``ids`` are of pages, by pid."""
        raise NotImplementedError

    def _seen(
        self,
        key: Key,
        job: Followed,
        ids: Mapping[int, str],
        ranks: tuple[Process, ...],
        **found: Any,
    ) -> WatchedJob:
        """A view with what every watch knows, and what was found."""
        return WatchedJob(
            seen_by=self.name,
            user=key[0],
            job_id=key[1],
            processes=ranks,
            pods={p.pid: self._pod_names.find(p.pod_uid) for p in ranks if p.pod_uid},
            first_seconds=job.first_seconds,
            has_pages=any(each.pid in ids for each in job.processes),
            **found,
        )

    def _follow(self, process: Process, ids: Mapping[int, str], now: float) -> None:
        users = (user for user, job_id in self.followed if job_id == process.job_id)
        process = _own_job_id(process, self._pages, ids, users)
        key = process.user, process.job_id
        num_jobs = sum(user == key[0] for user, _ in self.followed)
        if key not in self.followed and num_jobs >= MAX_JOBS:
            self._log_once(f"user={key[0]} state=full reason='over {MAX_JOBS} jobs'")
            return
        job = self.followed.setdefault(key, self.of_job(first_seconds=now))
        job.seen_seconds = now
        job.processes.append(process)

    def _log_once(self, text: str) -> None:
        if text not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(text)
            _log.warning("collector=%s %s", self.name, text)


@dataclass(frozen=True, slots=True)
class WatchedJobs:
    """The jobs of all watches, each once."""

    watches: Sequence[Watch[Any, Any]]
    cluster: str = "local"

    @property
    def jobs(self) -> tuple[WatchedJob, ...]:
        """By user and id."""
        found: dict[tuple[int, str], WatchedJob] = {}
        for job in (job for watch in self.watches for job in watch.jobs):
            other = found.get((job.user, job.job_id), job)
            best = min(other, job, key=lambda each: _ORDER.index(each.kind))
            found[job.user, job.job_id] = replace(best, totals={**other.totals, **job.totals})
        return tuple(found.values())


def _own_job_id(
    process: Process, pages: PageStore, ids: Mapping[int, str], users: Iterable[int]
) -> Process:
    """The process with its page's id, or one that is its user's: others keep their own.

    Args:
        process: with the id that it claims.
        pages: of jobs that tell of themselves.
        ids: of pages, by pid.
        users: of whom a job of that id is followed.
    """
    if process.pid in ids:
        return replace(process, job_id=ids[process.pid])
    owner = pages.owner_of(process.job_id)
    owner = owner if owner is not None else next(iter(users), process.user)
    if owner == process.user:
        return process
    return replace(process, job_id=f"user-{process.user}.{process.job_id}"[:100])


def ids_of_pages(pages: PageStore) -> dict[int, str]:
    """The job of each process that has a page and has not ended, by pid."""
    running = ((job, page) for job in pages.jobs() for page in job.newest_pages())
    found = (
        (job.process(page), job.job_id) for job, page in running if page.phase not in ENDED_PHASES
    )
    return {each.pid: job_id for each, job_id in found if each and each.pid is not None}


def one_a_rank(processes: Iterable[Process]) -> tuple[Process, ...]:
    """By rank: of the processes of one number the oldest, which started the others."""
    by_rank: dict[object, Process] = {}
    for each in sorted(processes, key=lambda process: process.start_ticks):
        by_rank.setdefault(each.pid if each.rank is None else ("rank", each.rank), each)
    return tuple(sorted(by_rank.values(), key=lambda each: (each.rank or 0, each.pid)))
