"""Jobs that tell nothing of themselves, as the watches of one node see them: one table of sources.

Each watch looks in a thread of its own and hands out the same kind of job. Where several see a job,
the one with most to say of its progress speaks for it: progress that anybody sees is progress.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from lockstep_agent.collector import Reading
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.sources.job_processes import JobProcess
from lockstep_agent.sources.pods import Pod
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_outcomes.progress.launch_finding import Kind, LaunchFinding

MAX_JOBS = 64
"""Of a user, that a watch follows."""
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


class Watch(Protocol):
    """Sees jobs; ``run_once`` looks anew, and may take as long as it needs."""

    name: str
    poll_seconds: float
    jobs: tuple[WatchedJob, ...]

    def run_once(self) -> None:
        """Finds the jobs and what there is to know of them."""

    def readings(self) -> Iterator[Reading]:
        """Of the watch itself."""


@dataclass(frozen=True, slots=True)
class WatchedJobs:
    """The jobs of all watches, each once."""

    watches: Sequence[Watch]
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


_Process = TypeVar("_Process", bound=JobProcess)


def own_job_id(
    process: _Process, pages: PageStore, ids: Mapping[int, str], users: Iterable[int]
) -> _Process:
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
