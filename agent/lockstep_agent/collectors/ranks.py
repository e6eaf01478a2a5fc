"""The rank pages of the node: every job under the root, until some time after its end."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from lockstep_agent.collector import AnyReading, Reading, Tier
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.pages import JobPages
from lockstep_agent.jobs.readings import JobView, job_readings
from lockstep_catalogue.health import PAGES_UNREADABLE
from lockstep_catalogue.labels import REASON


class Ranks:
    """Reports the state of all jobs on the node.

    Args:
        pages: the rank pages of the node.
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
        self._jobs: dict[Path, JobPages] = {}

    def collect(self) -> Iterator[AnyReading]:
        """Readings of every job that has not left, and how many pages cannot be read."""
        self._refresh()
        reasons = Counter[str]()
        for job in self._jobs.values():
            if job.has_left:
                continue
            reasons.update(job.unreadable.values())
            if job.pages:
                view = JobView(
                    job_id=job.folder.name,
                    node=self._node,
                    pages=job.pages,
                    running=job.running,
                    exemplars=job.slow_steps.exemplars(job.pages),
                )
                yield from job_readings(view)
        for reason in REASON.values:
            yield Reading(PAGES_UNREADABLE, (reason,), reasons[reason])

    def _refresh(self) -> None:
        jobs = self._pages.jobs()  # first: where it raises, nothing of what is known is lost
        followed, self._jobs = self._jobs, {}
        for job in jobs:
            pages = followed.get(job.folder) or JobPages(job.folder, self._linger_seconds)
            self._jobs[job.folder] = pages
            pages.refresh(job, self._clock())
