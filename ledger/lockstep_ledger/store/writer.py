"""Writes to the store from one thread: whole submissions in one transaction, or nothing."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import Connection, Engine, func, select, update

from lockstep_ledger.ingest.document import RefusedEvent
from lockstep_ledger.merge.counted import Labels
from lockstep_ledger.merge.outcome import SettleTimeouts
from lockstep_ledger.merge.precedence import SETTLED
from lockstep_ledger.merge.record import price, record_of_json
from lockstep_ledger.store.counters import Counters
from lockstep_ledger.store.database import chunks_of
from lockstep_ledger.store.tables import ASIDE_TIME, events, jobs
from lockstep_ledger.store.transaction import Submission, Transaction, WriterState, write_isolated
from lockstep_outcomes.prices.price import Pricing
from lockstep_records.events.event import Event, stable_id

_log = logging.getLogger(__name__)
_MAX_CACHED_JOBS = 5000


class StoreWriter:
    """Writes to the store, from one thread.

    Args:
        engine: an open store, locked by this process.
        timeouts: how long jobs wait for what is missing.
        groups: groups of jobs that are there at 0 before any job is.
        clock: wall clock in seconds.
        clusters: those that are counted by their names; any other is "other". None for any.
        pricing: by which jobs are priced, those of before too where another card priced them.
    """

    def __init__(
        self,
        engine: Engine,
        timeouts: SettleTimeouts | None = None,
        groups: Iterable[Labels] = (),
        clock: Callable[[], float] = time.time,
        clusters: frozenset[str] | None = None,
        *,
        pricing: Pricing | None = None,
    ) -> None:
        self._engine, self._clock = engine, clock
        self._state = WriterState(
            timeouts or SettleTimeouts(), Counters(clusters), pricing or Pricing()
        )
        with engine.begin() as connection:
            self.counters.load(connection)
            self.counters.declare(groups, clock())
            self.counters.save(connection)
            for name, column in (("sequence", events.c.sequence), ("num_jobs", jobs.c.number)):
                newest = connection.execute(select(func.max(column))).scalar()
                setattr(self._state, name, newest or 0)
            self._reprice(connection)
        self.counters.commit()
        # While the ledger was away nobody could report: all waits begin anew.
        self._settle_from_seconds = clock() + self._state.timeouts.node_seconds

    def _reprice(self, connection: Connection) -> None:
        """Prices the jobs anew that cost something else by this rate card."""
        state, digest = self._state, self._state.pricing.digest
        query = select(jobs.c.cluster, jobs.c.job_id, jobs.c.state)
        changed = []
        for row in connection.execute(query.where(jobs.c.rate_card != digest)):
            record = record_of_json(row.state)
            before = record.costs
            price(record, state.pricing)
            if record.costs != before:
                changed.append((row.cluster, row.job_id))
        for keys in chunks_of(changed):
            Transaction(state, connection, (), self._clock()).reprice(keys)
            state.memory.trim(_MAX_CACHED_JOBS)
        connection.execute(update(jobs).where(jobs.c.rate_card != digest).values(rate_card=digest))
        if changed:
            _log.info("repriced jobs=%d card=%s", len(changed), digest)

    @property
    def counters(self) -> Counters:
        """The counters, as they are in the store."""
        return self._state.counters

    @property
    def sequence(self) -> int:
        """Number of the newest event in the store."""
        return self._state.sequence

    def write(self, submissions: Sequence[Submission]) -> None:
        """Stores all submissions and fills in what became of them.

        That is one transaction, unless an event cannot be stored: it becomes a dead letter then.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the store failed; what it holds is stored for good.
        """
        write_isolated(self._write, submissions)
        self._state.memory.trim(_MAX_CACHED_JOBS)

    def _write(self, submissions: Sequence[Submission]) -> None:
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
                state.memory.clear()
                state.pins.clear()
                state.sequence, state.num_jobs = before
                for submission, refused in zip(submissions, checked, strict=True):
                    submission.stored = submission.duplicates = 0
                    submission.refused = refused
        self.counters.commit()

    def settle_due(self) -> int:
        """Settles jobs whose wait is over by events of the ledger's own; returns how many."""
        now = self._clock()
        if now < self._settle_from_seconds:
            return 0
        with self._engine.connect() as connection:
            columns = (jobs.c.cluster, jobs.c.job_id, jobs.c.status, jobs.c.run_begin)
            due = select(*columns).where(jobs.c.settle_at <= now)
            rows = connection.execute(due.limit(1000)).all()
        batch = [
            Event(
                id=stable_id(SETTLED, row.cluster, row.job_id, now),
                kind=SETTLED,
                cluster=row.cluster,
                job_id=row.job_id,
                node="",
                attempt=0,
                time=now,
                received=now,
                fields={"run_begin": None if row.status == "pending" else row.run_begin},
            )
            for row in rows
        ]
        if batch:
            submission = Submission(batch)
            self.write([submission])
            self._leave_aside(submission.refused, batch)
        return len(batch)

    def _leave_aside(self, refused: Sequence[RefusedEvent], batch: Sequence[Event]) -> None:
        """Lets jobs that cannot be settled wait for ever, or they would be tried each second."""
        ids = {letter.id for letter in refused}
        for key in [event.key for event in batch if event.id in ids]:
            _log.error("job=aside cluster=%s job=%s", *key)
            with self._engine.begin() as connection:
                own = (jobs.c.cluster == key[0], jobs.c.job_id == key[1])
                connection.execute(update(jobs).where(*own).values(settle_at=ASIDE_TIME))
            self._state.memory.drop(key)
