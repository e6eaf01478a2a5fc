"""The rank pages of the node: every job under the root, until some time after its end."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

from lockstep_agent.collector import AnyReading, Reading, Tier
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.pages import MAX_READS, JobPages
from lockstep_agent.jobs.readings import JobView, job_readings
from lockstep_catalogue.agent import PAGES_UNREADABLE
from lockstep_catalogue.labels import REASON
from lockstep_catalogue.training import RANKS


class Ranks:
    """Reports the state of all jobs on the node.

    Args:
        node: name of this machine; every page here is of this machine, whatever it says.
        linger_seconds: how long the series of a job stay after its end.
        clock: wall clock, in seconds.
    """

    name = "ranks"
    tier = Tier.EVERY_TICK

    def __init__(
        self,
        pages: PageStore,
        node: str,
        linger_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pages, self._node = pages, node
        self._linger_seconds, self._clock = linger_seconds, clock
        self._jobs: dict[str, JobPages] = {}
        self._reasons, self._spool_reads = Counter[str](), Counter[int]()

    def collect(self) -> Iterator[AnyReading]:
        """Readings of every job that has not left, and how many pages cannot be read."""
        self._reasons.clear()
        self._spool_reads.clear()
        followed: dict[str, JobPages] = {}
        yield from self._pages.readings(self.name, lambda job: self._job_readings(job, followed))
        self._jobs = followed
        for reason in REASON.values:
            yield Reading(PAGES_UNREADABLE, (reason,), self._reasons[reason])
        yield from self._pages.health()

    def _job_readings(
        self, job: JobSnapshot, followed: dict[str, JobPages]
    ) -> Iterator[AnyReading]:
        pages = self._jobs.get(job.job_id) or JobPages(self._linger_seconds)
        followed[job.job_id] = pages
        pages.refresh(job, self._clock())
        if pages.has_left:
            return
        self._reasons.update(pages.unreadable.values())
        for path, reason in pages.unreadable.items():
            remedy = "; this agent is older than it: upgrade the agent" * (reason == "version")
            self._pages.guard.log(job, f"page {path} cannot be read: {reason}{remedy}")
            break  # one line a minute
        if pages.pages:
            reads = MAX_READS - self._spool_reads[job.owner]
            exemplars = pages.slow_steps.exemplars(pages.pages, max_reads=reads)
            self._spool_reads[job.owner] += pages.slow_steps.num_read
            view = JobView(
                cluster=job.cluster,
                job_id=job.job_id,
                node=self._node,
                pages=pages.pages,
                running=pages.running,
                exemplars=exemplars,
                pods=job.pods,
            )
            yield from job_readings(view)
        elif pages.num_failed:  # before any of them had a page
            labels = (job.cluster, job.job_id, self._node, "failed")
            yield Reading(RANKS, labels, pages.num_failed)
