"""Samples, tokens and sequence lengths of the ranks: who has most of them, and what is usual."""

import statistics
from collections.abc import Iterator

from lockstep_agent.collector import AnyReading, Reading, Tier
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.page_store import PageStore
from lockstep_catalogue import training as metrics
from lockstep_records.page.reader import Page, Values, newest_rows

_NUM_ROWS = 64
_EXTRAS = {"longest_sequence": "sequence_max", "squares": "sequence_squares"}


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


def load_readings(labels: tuple[str, ...], current: list[Page]) -> Iterator[Reading]:
    """Of each load the node's median and its heaviest rank; absent where no rank reports it."""
    rows_by_rank = {page.identity["rank"]: newest_rows(page, _NUM_ROWS) for page in current}
    for load in ("samples", "tokens", *_EXTRAS):
        means = {
            rank: statistics.fmean(reported)
            for rank, rows in rows_by_rank.items()
            if (reported := _reported(rows, load))
        }
        if not any(means.values()):
            continue
        # Of equal ranks the lowest, so that a healthy job has one series and not each in turn.
        heaviest = max(means, key=lambda rank: (means[rank], -rank))
        heaviest_labels = (*labels, str(heaviest), load)
        yield Reading(metrics.HEAVIEST_LOAD, heaviest_labels, means[heaviest])
        yield Reading(metrics.MEDIAN_LOAD, (*labels, load), statistics.median(means.values()))


def _reported(rows: list[Values], load: str) -> list[float]:
    """A load of the rows that have it."""
    values = (row["extras"][_EXTRAS[load]] if load in _EXTRAS else row[load] for row in rows)
    return [value for value in values if value is not None]
