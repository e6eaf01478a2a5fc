"""Samples, tokens and sequence lengths of the ranks: who has most of them, and what is usual."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.jobs.outliers import load_readings
from lockstep_agent.jobs.page_store import PageStore


class Loads:
    """Compares the load of the ranks of each job by the newest rows of their pages.

    Args:
        pages: the rank pages of the node.
        node: name of this machine.
    """

    name = "loads"
    tier = Tier.TEN_SECONDS

    def __init__(self, pages: PageStore, node: str) -> None:
        self._pages, self._node = pages, node

    def collect(self) -> Iterator[Reading]:
        """Of each job the heaviest rank and the median, by kind of load."""
        for job in self._pages.jobs():
            running = [page for page in job.newest_pages() if job.is_running(page)]
            if running:
                labels = (running[0].identity["cluster"], job.job_id, self._node)
                yield from load_readings(labels, running)
