"""Hangs of the ranks of this node, judged from their pages: whoever started them, none has to tell.

The judgement is the one of ``lockstep run`` (``lockstep_records.hangs``); here it works for ranks
that plain torchrun or a batch system started.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.recent_events import RecentEvents
from lockstep_agent.sources.processes import is_running
from lockstep_catalogue import job_watch as metrics
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.attempts import newest_pages
from lockstep_records.hangs import HungRank, find_hang
from lockstep_records.jobs import list_jobs
from lockstep_records.page.reader import Page
from lockstep_records.switches import read_switches, switches_path

_log = logging.getLogger(__name__)
_MOST_NAMED = 8
_GONE = "gone"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A hang of a job on this node; ranks are in the order in which they stopped."""

    hung: tuple[HungRank, ...]
    missing: tuple[tuple[int, str], ...]
    limit_seconds: float
    attempt: int
    since_seconds: float


class Hangs:
    """Judges every job on the node.

    A rank whose process has ended does not hang, and others may wait for it. A job none of whose
    ranks run does not hang either. The floor of a job is the one of its switches, where it has one.

    Args:
        root: folder that holds ``jobs/``; it may come later.
        node: name of this machine.
        floor_seconds: no hang is shorter; 0 judges no job that does not ask for it.
        clock_ns: monotonic clock of this machine, on which pages tell their progress.

    Attributes:
        recent: hangs as events, newest last.
    """

    name = "hangs"
    tier = Tier.TEN_SECONDS

    def __init__(
        self,
        root: Path,
        node: str,
        procfs: Path,
        floor_seconds: float,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._root, self._node, self._procfs = root, node, procfs
        self._floor_seconds, self._clock_ns = floor_seconds, clock_ns
        self._lasting: dict[str, dict[str, Any]] = {}
        self.recent = RecentEvents()

    def collect(self) -> Iterator[Reading]:
        """How many ranks hang, who stopped first and for whom the others wait."""
        seen = set()
        for job in list_jobs(self._root):
            seen.add(job.name)
            yield from self._of_job(job)
        for gone in set(self._lasting) - seen:
            self._end(gone)

    def _of_job(self, job: Path) -> Iterator[Reading]:
        floor = self._floor_of(job)
        try:
            pages = newest_pages(job) if floor else []
        except OSError:  # the folder is being removed
            pages = []
        running = {page.identity["rank"] for page in pages if self._runs(page)}
        if not running:
            self._end(job.name)
            return
        labels = (pages[0].identity["cluster"], job.name, self._node)
        found = self._judge(pages, running, floor)
        yield Reading(metrics.HUNG_RANKS, labels, len(found.hung) if found else 0)
        if found is None:
            self._end(job.name)
            return
        self._tell(job.name, labels, found)
        first = found.hung[0]
        of_first = (*labels, str(first.rank), first.phase)
        yield Reading(metrics.HANG_FIRST, of_first, first.idle_seconds)
        for rank, standing in found.missing[:_MOST_NAMED]:
            yield Reading(metrics.HANG_MISSING, (*labels, str(rank), standing), 1)

    def _runs(self, page: Page) -> bool:
        began_ns = page.identity["start_monotonic_ns"]
        return is_running(self._procfs, page.identity["pid"], began_ns)

    def _floor_of(self, job: Path) -> float:
        try:
            told = read_switches(switches_path(job)).hang_seconds
        except ValueError:  # the ranks say so in their logs
            told = None
        return self._floor_seconds if told is None else told

    def _judge(self, pages: list[Page], running: set[int], floor: float) -> _Found | None:
        now_ns = self._clock_ns()
        hang = find_hang(pages, now_ns, floor, self._procfs)
        idle = [one for one in hang.ranks if one.rank in running] if hang else []
        if not hang or not idle:
            return None
        idle.sort(key=lambda one: -one.idle_seconds)
        by_rank = {page.identity["rank"]: page for page in pages}
        standing = {one.rank: one.phase for one in idle}
        gone = [rank for rank in by_rank if rank not in running and not _is_over(by_rank[rank])]
        missing = gone or [one.rank for one in idle if one.rank in hang.missing]
        first = by_rank[idle[0].rank]
        return _Found(
            hung=tuple(idle),
            missing=tuple((rank, standing.get(rank, _GONE)) for rank in missing),
            limit_seconds=hang.limit_seconds,
            attempt=first.identity["attempt"],
            since_seconds=first.progress_wall_seconds,
        )

    def _tell(self, job_id: str, labels: tuple[str, ...], found: _Found) -> None:
        """Keeps the hang's event up to date; one that begins is said once."""
        event = _event(labels, found)
        known = self._lasting.get(job_id)
        if known is not None:
            known["messages"] += 1
            known |= {key: event[key] for key in ("facts", "text", "last_seconds")}
        else:
            self._lasting[job_id] = event
            self.recent.add(event)
            _log.warning("job=%s state=hung %s", job_id, event["text"])
        self.recent.publish()

    def _end(self, job_id: str) -> None:
        event = self._lasting.pop(job_id, None)
        if event is not None:
            event["facts"] = event["facts"] | {"lasts": "no"}
            self.recent.publish()
            _log.info("job=%s state=hangs_no_more", job_id)


def _is_over(page: Page) -> bool:
    return page.phase in ENDED_PHASES


def _event(labels: tuple[str, ...], found: _Found) -> dict[str, Any]:
    """A hang in the form of the incidents of the logs; its id is the same after a restart."""
    first = found.hung[0]
    ranks = ", ".join(f"rank {one.rank} in {one.phase}" for one in found.hung[:_MOST_NAMED])
    missing = ", ".join(str(rank) for rank, _ in found.missing[:_MOST_NAMED])
    waited_for = f"the others wait for {missing}" if missing else "none of this node stands apart"
    return {
        "id": f"hang/{labels[1]}/{found.attempt}/{found.since_seconds:.3f}",
        "log": "ranks",
        "metric": metrics.HUNG_RANKS.name,
        "labels": dict(zip(metrics.HUNG_RANKS.label_names, labels, strict=True)),
        "facts": {
            "attempt": str(found.attempt),
            "first": str(first.rank),
            "first_standing": first.phase,
            "first_process": first.process or "",
            "hung": str(len(found.hung)),
            "missing": missing,
            "limit_seconds": f"{found.limit_seconds:g}",
            "lasts": "yes",
        },
        "text": f"no progress: {ranks}; {waited_for}",
        "first_seconds": found.since_seconds,
        "last_seconds": found.since_seconds + first.idle_seconds,
        "messages": 1,
        "counted": True,
    }
