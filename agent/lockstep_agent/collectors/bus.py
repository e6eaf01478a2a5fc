"""What the collectives of a job put on the bus, and how fast, by the formula of nccl-tests.

A rank's exposed seconds hold its waiting for those who come later. The rank that waited least
comes nearest to what the links did; it is the one that is told. Where a transfer is hidden behind
the backward pass only its exposed end counts, and the figure may pass what the links can do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_catalogue import job_watch as metrics
from lockstep_catalogue.labels import KIND
from lockstep_records.attempts import newest_pages
from lockstep_records.jobs import list_jobs
from lockstep_records.page.reader import Page

_LEAST_STEPS = 8  # bytes are written once a second and seconds once a step: fewer steps mislead
_HELD_NS = 300 * 10**9


@dataclass(slots=True)
class _Rank:
    """A page at an earlier look, and the bus bandwidth by kind that followed from it."""

    before: Page
    told_ns: int
    rates: dict[str, float]


class Bus:
    """Compares each page with what it was eight steps ago or more; at first, with its birth.

    Args:
        root: folder that holds ``jobs/``; it may come later.
        node: name of this machine.
    """

    name = "bus"
    tier = Tier.TEN_SECONDS

    def __init__(self, root: Path, node: str) -> None:
        self._root, self._node = root, node
        self._ranks: dict[Path, _Rank] = {}

    def collect(self) -> Iterator[Reading]:
        """Bus bandwidth by kind of collective; absent until it is known."""
        known, self._ranks = self._ranks, {}
        for job in list_jobs(self._root):
            try:
                pages = newest_pages(job)
            except OSError:  # the folder is being removed
                continue
            ranks = [_looked_at(page, known.get(page.path)) for page in pages]
            self._ranks |= {page.path: rank for page, rank in zip(pages, ranks, strict=True)}
            for kind in KIND.values:
                rates = [rank.rates[kind] for rank in ranks if kind in rank.rates]
                if rates:
                    labels = (pages[0].identity["cluster"], job.name, self._node, kind)
                    yield Reading(metrics.BUS_RATE, labels, max(rates))


def _looked_at(page: Page, rank: _Rank | None) -> _Rank:
    now_ns = page.state["written_ns"]
    if rank is None or not _same_life(rank.before, page):
        return _Rank(page, now_ns, _of_life(page))
    if page.state["steps"] - rank.before.state["steps"] >= _LEAST_STEPS:
        return _Rank(page, now_ns, _rates(rank.before, page))
    if now_ns - rank.told_ns > _HELD_NS:
        rank.rates = {}
    return rank


def _rates(before: Page, now: Page) -> dict[str, float]:
    """Bytes a second of wall clock over exposed seconds a second of wall clock.

    The two are written at other moments, each with its own time.
    """
    of_bytes = now.periodic["written_ns"] - before.periodic["written_ns"]
    of_seconds = now.state["written_ns"] - before.state["written_ns"]
    if of_bytes <= 0 or of_seconds <= 0:
        return {}
    rates = {}
    for kind in KIND.values:
        size = now.periodic["bus_bytes"][kind] - before.periodic["bus_bytes"][kind]
        seconds = now.state["collective_seconds"][kind] - before.state["collective_seconds"][kind]
        if size > 0 and 0 < seconds < float("inf"):
            rates[kind] = (size / of_bytes) / (seconds / of_seconds)
    return rates


def _of_life(page: Page) -> dict[str, float]:
    """What follows from a page alone, as long as nothing is known of what it was before."""
    bus, exposed = page.periodic["bus_bytes"], page.state["collective_seconds"]
    if page.state["steps"] < _LEAST_STEPS:
        return {}
    return {
        kind: bus[kind] / exposed[kind]
        for kind in KIND.values
        if bus[kind] > 0 and 0 < exposed[kind] < float("inf")
    }


def _same_life(one: Page, other: Page) -> bool:
    return bool(
        one.identity["start_wall_ns"] == other.identity["start_wall_ns"]
        and other.state["steps"] >= one.state["steps"]
    )
