"""The rank pages of the node: every job under the root, until some time after its end."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from lockstep_agent.collector import AnyReading, Reading, Tier
from lockstep_agent.jobs.pages import JobPages
from lockstep_agent.jobs.readings import JobView, job_readings
from lockstep_agent.sources.processes import is_running
from lockstep_catalogue.health import PAGES_UNREADABLE
from lockstep_catalogue.labels import REASON
from lockstep_records.jobs import list_jobs
from lockstep_records.page.reader import Page


class Ranks:
    """Reads the pages of all jobs on the node.

    Args:
        root: folder that holds ``jobs/``; it may come later.
        node: name of this machine; every page here is of this machine, whatever it says.
        linger_seconds: how long the series of a job stay after its end.
        clock: wall clock, in seconds.
    """

    name = "ranks"
    tier = Tier.EVERY_TICK

    def __init__(
        self,
        root: Path,
        node: str,
        procfs: Path,
        linger_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root, self._node, self._procfs = root, node, procfs
        self._linger_seconds, self._clock = linger_seconds, clock
        self._jobs: dict[Path, JobPages] = {}

    def collect(self) -> Iterator[AnyReading]:
        """What the ranks tell, and how many pages cannot be read."""
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
        folders = list_jobs(self._root)
        self._jobs = {folder: self._jobs.get(folder) or self._new(folder) for folder in folders}
        for job in self._jobs.values():
            job.refresh(self._clock())

    def _new(self, folder: Path) -> JobPages:
        return JobPages(folder, self._linger_seconds, self._runs)

    def _runs(self, page: Page) -> bool:
        return is_running(self._procfs, page.identity["pid"], page.identity["start_monotonic_ns"])
