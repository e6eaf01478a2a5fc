"""Writes to the store from one thread: whole submissions in one transaction, or nothing."""

import time
from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import Connection, Engine, func, select

from lockstep_ledger.merge.apply import SETTLED
from lockstep_ledger.merge.effects import Labels
from lockstep_ledger.merge.event import LedgerEvent
from lockstep_ledger.merge.settlement import Patience
from lockstep_ledger.store.counters import Counters
from lockstep_ledger.store.tables import events, jobs
from lockstep_ledger.store.transaction import Submission, Transaction, WriterState
from lockstep_records.events import stable_id

_MAX_CACHED_JOBS = 5000


class StoreWriter:
    """Writes to the store, from one thread.

    Args:
        engine: an open store, locked by this process.
        patience: how long jobs wait for what is missing.
        groups: groups of jobs that are there at 0 before any job is.
        clock: wall clock in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        patience: Patience | None = None,
        groups: Iterable[Labels] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine, self._clock = engine, clock
        self._state = WriterState(patience or Patience())
        with engine.begin() as connection:
            self.counters.load(connection)
            self.counters.declare(groups, clock())
            self.counters.save(connection)
            self._load_numbers(connection)
        self.counters.commit()
        # While the ledger was away nobody could report: all waits begin anew.
        self._settle_from_seconds = clock() + self._state.patience.node_seconds

    @property
    def counters(self) -> Counters:
        """The counters, as they are in the store."""
        return self._state.counters

    @property
    def sequence(self) -> int:
        """Number of the newest event in the store."""
        return self._state.sequence

    def _load_numbers(self, connection: Connection) -> None:
        for name, column in (("sequence", events.c.sequence), ("num_jobs", jobs.c.number)):
            setattr(self._state, name, connection.execute(select(func.max(column))).scalar() or 0)

    def write(self, submissions: Sequence[Submission]) -> None:
        """Stores all submissions in one transaction and fills in what became of them.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: nothing is stored.
        """
        state = self._state
        before = (state.sequence, state.num_jobs)
        checked = [list(submission.refused) for submission in submissions]
        is_done = False
        try:
            with self._engine.begin() as connection:
                Transaction(state, connection, submissions, self._clock()).run()
            is_done = True
        finally:
            if not is_done:
                self.counters.rollback()
                state.cache.clear()
                state.sequence, state.num_jobs = before
                for submission, refused in zip(submissions, checked, strict=True):
                    submission.stored = submission.duplicates = 0
                    submission.refused = refused
        self.counters.commit()
        self._trim_cache()

    def settle_due(self) -> int:
        """Settles jobs whose wait is over by events of the ledger's own; returns how many."""
        now = self._clock()
        if now < self._settle_from_seconds:
            return 0
        with self._engine.connect() as connection:
            due = select(jobs.c.cluster, jobs.c.job_id, jobs.c.settle_at).where(
                jobs.c.settle_at <= now
            )
            rows = connection.execute(due.limit(1000)).all()
        batch = [
            LedgerEvent(
                id=stable_id(SETTLED, row.cluster, row.job_id, row.settle_at),
                kind=SETTLED,
                cluster=row.cluster,
                job_id=row.job_id,
                node="",
                attempt=0,
                time_seconds=now,
                received_seconds=now,
                fields={},
            )
            for row in rows
        ]
        if batch:
            self.write([Submission(batch)])
        return len(batch)

    def _trim_cache(self) -> None:
        for key in list(self._state.cache)[: max(0, len(self._state.cache) - _MAX_CACHED_JOBS)]:
            del self._state.cache[key]
