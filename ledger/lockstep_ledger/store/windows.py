"""Exact counts of objectives per window, jobs by status, and the number of dead letters."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine, RowMapping, case, delete, func, select
from sqlalchemy.exc import SQLAlchemyError

from lockstep_catalogue.ledger import SLO_COUNTS_SECONDS, SLO_WINDOWS
from lockstep_ledger.store import letters
from lockstep_ledger.store.counters import counted_cluster
from lockstep_ledger.store.tables import ASIDE_TIME, dead_letters, jobs, slo_events
from lockstep_ledger.store.targets import Target, running_targets

SloKey = tuple[str, str, str, str]
"""Cluster, class of jobs, objective and window."""
_log = logging.getLogger(__name__)
# A store of millions of events takes a second to count: that stays below a tenth of a core.
_REST_FACTOR = 10.0
_HOUSEKEEPING_SECONDS = 3600.0
_KEEP_SECONDS = max(SLO_WINDOWS.values()) + 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowCounts:
    """Counts taken from the store at one moment.

    Attributes:
        slo: (good, total) by cluster, class of jobs, objective and window.
        jobs: number of unsettled jobs by cluster and status.
        jobs_aside: number of jobs that cannot be settled.
        targets: of running jobs, the newest first.
    """

    time_seconds: float
    slo: dict[SloKey, tuple[float, float]] = field(default_factory=dict)
    jobs: dict[tuple[str, str], int] = field(default_factory=dict)
    dead_letters: int = 0
    jobs_aside: int = 0
    targets: tuple[Target, ...] = ()


def count_windows(
    engine: Engine, now_seconds: float, clusters: frozenset[str] | None = None
) -> WindowCounts:
    """Counts now; a window ends at ``now_seconds`` and holds its end, not its begin.

    Clusters that are not among ``clusters`` are one, "other"; None for no such limit.
    """
    columns = []
    for window, seconds in SLO_WINDOWS.items():
        is_inside = slo_events.c.time > now_seconds - seconds
        for name in ("good", "total"):
            inside = case((is_inside, slo_events.c[name]), else_=0.0)
            columns.append(func.sum(inside).label(f"{name}_{window}"))
    groups = (slo_events.c.cluster, slo_events.c.job_class, slo_events.c.slo)
    query = select(*groups, *columns)
    longest = max(SLO_WINDOWS.values())
    query = query.where(
        slo_events.c.time > now_seconds - longest, slo_events.c.time <= now_seconds
    ).group_by(*groups)
    with engine.connect() as connection:
        rows = connection.execute(query).mappings().all()
        by_status = _count_by_status(connection, clusters)
        targets = tuple(running_targets(connection, clusters))
        aside = select(func.count()).where(jobs.c.settle_at >= ASIDE_TIME)
        num_aside = connection.execute(aside).scalar()
        num_letters = connection.execute(select(func.count()).select_from(dead_letters)).scalar()
    return WindowCounts(
        time_seconds=now_seconds,
        slo=_sum_by_window(rows, clusters),
        jobs=by_status,
        dead_letters=num_letters or 0,
        jobs_aside=num_aside or 0,
        targets=targets,
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


def _sum_by_window(
    rows: Iterable[RowMapping], clusters: frozenset[str] | None
) -> dict[SloKey, tuple[float, float]]:
    slo: dict[SloKey, tuple[float, float]] = {}
    for row in rows:
        cluster = counted_cluster(row["cluster"], clusters)
        for window in SLO_WINDOWS:
            key = (cluster, row["job_class"], row["slo"], window)
            good, total = slo.get(key, (0.0, 0.0))
            slo[key] = (good + row[f"good_{window}"], total + row[f"total_{window}"])
    return slo


class WindowReader:
    """Counts again every few seconds in a thread of its own, so that no scrape waits for it."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.time,
        clusters: frozenset[str] | None = None,
    ) -> None:
        self._engine, self._clock, self._clusters = engine, clock, clusters
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
            self.counts = count_windows(self._engine, self._clock(), self._clusters)
        except SQLAlchemyError as error:
            _log.warning("windows=old reason=%r", str(error).partition("\n")[0])

    def _run(self) -> None:
        next_cleaning_seconds = time.monotonic() + _HOUSEKEEPING_SECONDS
        wait_seconds = SLO_COUNTS_SECONDS
        while not self._stop.wait(wait_seconds):
            begin_seconds = time.monotonic()
            self.refresh()
            took_seconds = time.monotonic() - begin_seconds
            wait_seconds = max(SLO_COUNTS_SECONDS, took_seconds * _REST_FACTOR)
            if begin_seconds >= next_cleaning_seconds:
                next_cleaning_seconds = begin_seconds + _HOUSEKEEPING_SECONDS
                self._clean()

    def _clean(self) -> None:
        """Removes what no window and no person looks at any more."""
        try:
            with self._engine.begin() as connection:
                letters.trim(connection)
                oldest = self._clock() - _KEEP_SECONDS
                connection.execute(delete(slo_events).where(slo_events.c.time < oldest))
        except SQLAlchemyError as error:
            _log.warning("cleaning=failed reason=%r", str(error).partition("\n")[0])
