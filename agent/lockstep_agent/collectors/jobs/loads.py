"""Samples, tokens and sequence lengths of the ranks: who has most of them, and what is usual."""

from collections.abc import Iterator

from lockstep_agent.collector import AnyReading, Tier
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.outliers import load_readings
from lockstep_agent.jobs.page_store import PageStore


class Loads:
    """Compares the load of the ranks of each job by the newest rows of their pages."""

    name = "loads"
    tier = Tier.TEN_SECONDS

    def __init__(self, pages: PageStore, node: str) -> None:
        self._pages, self._node = pages, node

    def collect(self) -> Iterator[AnyReading]:
        """Of each job the heaviest rank and the median, by kind of load."""
        yield from self._pages.readings(self.name, self._job_readings)

    def _job_readings(self, job: JobSnapshot) -> Iterator[AnyReading]:
        running = [page for page in job.newest_pages() if job.is_running(page)]
        if running:
            yield from load_readings((job.cluster, job.job_id, self._node), running)
