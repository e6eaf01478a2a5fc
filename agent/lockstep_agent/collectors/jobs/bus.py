"""Bytes that the collectives of a job put on the bus, and their rate, by the formula of nccl-tests.

The exposed seconds of a rank hold its waiting for ranks that arrive later. The rank that waited
least comes nearest to what the links did, so its figure is the one reported. Where a transfer is
hidden behind the backward pass only its exposed end counts, and the figure may exceed what the
links can do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep_agent.collector import AnyReading, Reading, Tier
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.page_store import PageStore
from lockstep_catalogue import training as metrics
from lockstep_catalogue.labels import KIND
from lockstep_records.page.reader import Page

_MIN_STEPS = 8  # bytes are written once a second and seconds once a step: fewer steps mislead
# After fewer than eight steps in five minutes the last bandwidth says nothing of now.
_RATES_EXPIRE_NS = 300 * 10**9


@dataclass(slots=True)
class _RankRates:
    """Bus bandwidth of one rank by kind of collective.

    Attributes:
        base: the page at the step from which the next rates are counted.
        updated_ns: monotonic time at which the rates were computed.
        rates: bytes a second by kind; kinds without an exposed transfer are left out.
    """

    base: Page
    updated_ns: int
    rates: dict[str, float]


class Bus:
    """Compares each page with what it was eight steps ago or more; at first, with its creation."""

    name = "bus"
    tier = Tier.TEN_SECONDS

    def __init__(self, pages: PageStore, node: str) -> None:
        self._pages, self._node = pages, node
        self._ranks: dict[Path, _RankRates] = {}
        self._before: dict[Path, _RankRates] = {}

    def collect(self) -> Iterator[AnyReading]:
        """Bus bandwidth by kind of collective; absent until it is known."""
        self._before, self._ranks = self._ranks, {}
        yield from self._pages.readings(self.name, self._job_readings)

    def _job_readings(self, job: JobSnapshot) -> Iterator[AnyReading]:
        pages = job.newest_pages()
        ranks = [_update(page, self._before.get(page.path)) for page in pages]
        self._ranks |= {page.path: rank for page, rank in zip(pages, ranks, strict=True)}
        for kind in KIND.values:
            rates = [rank.rates[kind] for rank in ranks if kind in rank.rates]
            if rates:
                labels = (job.cluster, job.job_id, self._node, kind)
                yield Reading(metrics.BUS_RATE, labels, max(rates))


def _update(page: Page, rank: _RankRates | None) -> _RankRates:
    """The rates of a rank once its page is read; the old ones while too few steps have passed."""
    now_ns = page.state["written_ns"]
    if rank is None or not _continues(rank.base, page):
        return _RankRates(page, now_ns, _rates_since_creation(page))
    if page.state["steps"] - rank.base.state["steps"] >= _MIN_STEPS:
        return _RankRates(page, now_ns, _rates_between(rank.base, page))
    if now_ns - rank.updated_ns > _RATES_EXPIRE_NS:
        rank.rates = {}
    return rank


def _rates_between(before: Page, now: Page) -> dict[str, float]:
    """Bytes a second of wall clock over exposed seconds a second of wall clock, by kind.

    The two counters are written at different moments, so each is divided by its own time.
    """
    bytes_ns = now.periodic["written_ns"] - before.periodic["written_ns"]
    seconds_ns = now.state["written_ns"] - before.state["written_ns"]
    if bytes_ns <= 0 or seconds_ns <= 0:
        return {}
    rates = {}
    for kind in KIND.values:
        size = now.periodic["bus_bytes"][kind] - before.periodic["bus_bytes"][kind]
        seconds = now.state["collective_seconds"][kind] - before.state["collective_seconds"][kind]
        if size > 0 and 0 < seconds < float("inf"):
            rates[kind] = (size / bytes_ns) / (seconds / seconds_ns)
    return rates


def _rates_since_creation(page: Page) -> dict[str, float]:
    """Bytes over exposed seconds of the whole page, by kind, while no earlier state is known."""
    bus, exposed = page.periodic["bus_bytes"], page.state["collective_seconds"]
    if page.state["steps"] < _MIN_STEPS:
        return {}
    return {
        kind: bus[kind] / exposed[kind]
        for kind in KIND.values
        if bus[kind] > 0 and 0 < exposed[kind] < float("inf")
    }


def _continues(before: Page, now: Page) -> bool:
    """Whether the same process wrote both and no step was lost to a torn slot."""
    return bool(
        before.identity["start_wall_ns"] == now.identity["start_wall_ns"]
        and now.state["steps"] >= before.state["steps"]
    )
