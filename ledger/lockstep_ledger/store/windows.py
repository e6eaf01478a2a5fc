"""Counts that a scrape takes from the store: windows, jobs by status, promises, letters."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table, case, func, select, union_all
from sqlalchemy.exc import SQLAlchemyError

from lockstep_catalogue.ledger import MAX_TARGETS, SLO_COUNTS_SECONDS, SLO_WINDOWS
from lockstep_ledger.merge.record import record_of_json
from lockstep_ledger.store.counters import counted_cluster
from lockstep_ledger.store.tables import ASIDE_TIME, dead_letters, jobs, slo_events, slo_rollups

SloKey = tuple[str, str, str, str]
"""Cluster, class of jobs, objective and window."""
_log = logging.getLogger(__name__)
# A store of millions of events takes a second to count: that stays below a tenth of a core.
_REST_FACTOR = 10.0
_MAX_READ = 2000  # a record is decoded in some ten microseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The promise of one job: its tokens by a wall clock."""

    cluster: str
    job_id: str
    deadline_time: float
    tokens: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowCounts:
    """Counts taken from the store at one moment.

    Attributes:
        slo: (good, total) by cluster, class of jobs, objective and window.
        targets: of running jobs, the newest first.
        ends: end of each job of the last day by cluster, id, outcome and class of failure.
    """

    time_seconds: float
    slo: dict[SloKey, tuple[float, float]] = field(default_factory=dict)
    jobs: dict[tuple[str, str], int] = field(default_factory=dict)
    dead_letters: int = 0
    jobs_aside: int = 0
    targets: tuple[Target, ...] = ()
    ends: Mapping[tuple[str, str, str, str], float] = field(default_factory=dict)


def count_windows(
    engine: Engine, now_seconds: float, clusters: frozenset[str] | None = None
) -> WindowCounts:
    """Counts now; a window ends at ``now_seconds`` and holds its end, not its begin.

    Clusters that are not among ``clusters`` are one, "other"; None for no such limit.
    """
    aside = select(func.count()).where(jobs.c.settle_at >= ASIDE_TIME)
    letters = select(func.count()).select_from(dead_letters)
    with engine.connect() as connection:
        return WindowCounts(
            time_seconds=now_seconds,
            slo=_count_slo(connection, now_seconds, clusters),
            jobs=_count_by_status(connection, clusters),
            targets=tuple(running_targets(connection, clusters)),
            ends=_newest_ends(connection, now_seconds, clusters),
            jobs_aside=connection.execute(aside).scalar_one(),
            dead_letters=connection.execute(letters).scalar_one(),
        )


def _count_by_status(
    connection: Connection, clusters: frozenset[str] | None
) -> dict[tuple[str, str], int]:
    unsettled = (
        select(jobs.c.cluster, jobs.c.status, func.count())
        .where(jobs.c.status.in_(("pending", "running", "ended")))
        .group_by(jobs.c.cluster, jobs.c.status)
    )
    by_status: Counter[tuple[str, str]] = Counter()
    for cluster, status, count in connection.execute(unsettled):
        by_status[counted_cluster(cluster, clusters), status] += count
    return dict(by_status)


def _count_slo(
    connection: Connection, now_seconds: float, clusters: frozenset[str] | None
) -> dict[SloKey, tuple[float, float]]:
    """Counts of each window; a bucket of older rows counts while its begin is inside."""
    windows = sorted(SLO_WINDOWS.items(), key=lambda window: window[1])
    # One statement, for a bucket may move from one table to the other at any moment.
    rows = connection.execute(
        union_all(*(_sum_bands(table, now_seconds) for table in (slo_events, slo_rollups)))
    )
    slo: dict[SloKey, tuple[float, float]] = {}
    for cluster, job_class, name, band, good, total in rows:
        for window, seconds in windows:
            if seconds >= band:
                key = (counted_cluster(cluster, clusters), job_class, name, window)
                good_before, total_before = slo.get(key, (0.0, 0.0))
                slo[key] = (good_before + good, total_before + total)
    return slo


def _sum_bands(table: Table, now_seconds: float) -> Select[Any]:
    lengths = sorted(SLO_WINDOWS.values())
    bands = [(table.c.time > now_seconds - seconds, seconds) for seconds in lengths]
    groups = (table.c.cluster, table.c.job_class, table.c.slo, case(*bands).label("band"))
    return (
        select(*groups, func.sum(table.c.good), func.sum(table.c.total))
        .where(table.c.time > now_seconds - lengths[-1], table.c.time <= now_seconds)
        .group_by(*groups)
    )


def running_targets(
    connection: Connection, clusters: frozenset[str] | None = None
) -> Iterator[Target]:
    """Targets of the newest running jobs that declare a deadline and their tokens."""
    query = (
        select(jobs.c.state)
        .where(jobs.c.status == "running")
        .order_by(jobs.c.number.desc())
        .limit(_MAX_READ)
    )
    num_targets = 0
    for (state,) in connection.execute(query):
        try:
            job = record_of_json(state)
        except ValueError:  # its record cannot be read, and harms no other
            continue
        if job.deadline and job.declared_tokens and num_targets < MAX_TARGETS:
            num_targets += 1
            yield Target(
                cluster=counted_cluster(job.cluster, clusters),
                job_id=job.job_id,
                deadline_time=job.deadline,
                tokens=job.declared_tokens,
            )


def _newest_ends(
    connection: Connection, now_seconds: float, clusters: frozenset[str] | None
) -> dict[tuple[str, str, str, str], float]:
    columns = (jobs.c.cluster, jobs.c.job_id, jobs.c.outcome, jobs.c.failure_class, jobs.c.ended)
    query = (
        select(*columns)
        .where(jobs.c.ended > now_seconds - SLO_WINDOWS["24h"], jobs.c.outcome.is_not(None))
        .order_by(jobs.c.ended.desc())
        .limit(MAX_TARGETS)
    )
    return {
        (counted_cluster(cluster, clusters), job_id, outcome, failure_class or "none"): ended
        for cluster, job_id, outcome, failure_class, ended in connection.execute(query)
    }


class WindowReader:
    """Counts again every few seconds in a thread of its own, so that no scrape waits for it."""

    def __init__(self, engine: Engine, clusters: frozenset[str] | None = None) -> None:
        self._engine, self._clusters = engine, clusters
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="windows", daemon=True)
        self.counts: WindowCounts | None = None

    def start(self) -> None:
        """Counts once, then starts the thread."""
        self.refresh()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join(SLO_COUNTS_SECONDS)

    def refresh(self) -> None:
        """Counts now; while the database is away the last counts stay, with their time."""
        try:
            self.counts = count_windows(self._engine, time.time(), self._clusters)
        except SQLAlchemyError as error:
            _log.warning("windows=old reason=%r", str(error).partition("\n")[0])

    def _run(self) -> None:
        wait_seconds = SLO_COUNTS_SECONDS
        while not self._stop.wait(wait_seconds):
            begin_seconds = time.monotonic()
            self.refresh()
            took_seconds = time.monotonic() - begin_seconds
            wait_seconds = max(SLO_COUNTS_SECONDS, took_seconds * _REST_FACTOR)
