"""Writes to a store that several ledgers may share: one leads, the others leave it deliveries.

The leader writes by one connection, whose session holds a lock: without the connection it leads no
more, so no transaction of an earlier leader can follow one of the next.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from lockstep_ledger.ingest.document import RefusedEvent
from lockstep_ledger.ingest.speakers import Speaker
from lockstep_ledger.merge.counted import Labels
from lockstep_ledger.merge.outcome import SettleTimeouts
from lockstep_ledger.merge.precedence import SETTLED
from lockstep_ledger.merge.record import price, record_of_json
from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store.counters import Counters
from lockstep_ledger.store.database import WRITER_LOCK, chunks_of, connect_arguments
from lockstep_ledger.store.retention import Retention, Upkeep
from lockstep_ledger.store.tables import ASIDE_TIME, counter_bases, events, inbox, jobs
from lockstep_ledger.store.transaction import Submission, Transaction, WriterState, write_isolated
from lockstep_outcomes.prices.price import Pricing
from lockstep_records.events.event import Event, stable_id

_log = logging.getLogger(__name__)
_MAX_CACHED_JOBS = 5000


class StoreWriter:
    """Writes to the store, from one thread.

    Args:
        engine: an open store, locked by this process.
        groups: groups of jobs that are there at 0 before any job is.
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
        """Stores all submissions in one transaction and fills in what became of them.

        An event that cannot be stored becomes a dead letter. On a SQLAlchemyError the store has
        failed; what it holds is stored for good.
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
        for key in [each.key for each in batch if each.id in ids]:
            _log.error("job=aside cluster=%s job=%s", *key)
            with self._engine.begin() as connection:
                own = (jobs.c.cluster == key[0], jobs.c.job_id == key[1])
                connection.execute(update(jobs).where(*own).values(settle_at=ASIDE_TIME))
            self._state.memory.drop(key)


_BATCH, _MAX_BATCHES = 20, 20
_PROBE_SECONDS = 10.0
# Longer than any commit; an answer that has not come by then is lost, and its connection is cut.
ANSWER_SECONDS = 20.0
_TICK_SECONDS = 1.0
_OLDEST = select(inbox).order_by(inbox.c.number).limit(_BATCH)


class LeadLostError(SQLAlchemyError):
    """The connection that held the lock is gone; another ledger may lead."""


class SharedWriter:
    """The leader's writer while this ledger leads; else deliveries go into the inbox.

    With SQLite, whose file is locked for the process, this ledger always leads. All methods but the
    properties are called by one thread.

    Attributes:
        bases: what counters held when the store was restored, by number: they are served without.
        inbox_size: deliveries that wait for the leader, a moment ago.
    """

    def __init__(
        self,
        engine: Engine,
        open_writer: Callable[[Engine], StoreWriter],
        retention: Retention | None = None,
    ) -> None:
        self._open_writer = open_writer
        self._retention = retention or Retention()
        self._upkeep: Upkeep | None = None
        self.bases: Mapping[int, float] = {}
        self._is_shareable = engine.dialect.name == "postgresql"
        self._engine = self._own_engine(engine) if self._is_shareable else engine
        self._holds_lock = False
        self._writer: StoreWriter | None = None
        self._socket: int | None = None
        self._begin_seconds: float | None = None
        self._written_seconds = float("-inf")
        self.inbox_size = 0
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._cut_lost, name="answers", daemon=True)

    def _own_engine(self, engine: Engine) -> Engine:
        """One connection, which is never replaced while this ledger leads."""
        own = create_engine(
            engine.url, pool_size=1, max_overflow=0, connect_args=connect_arguments(engine.url)
        )

        @event.listens_for(own, "do_connect")
        def _connect(dialect: Any, _record: object, words: Any, options: Any) -> Any:
            if self._holds_lock:
                raise LeadLostError("the connection of the leader is lost")
            connection = dialect.connect(*words, **options)
            self._socket = connection.fileno()
            return connection

        return own

    @property
    def leads(self) -> bool:
        """Whether this ledger leads, as far as it can know without an answer of the store."""
        return self._writer is not None and self.waiting_seconds < ANSWER_SECONDS

    @property
    def waiting_seconds(self) -> float:
        """How long the store has owed an answer; 0 without a question."""
        begin = self._begin_seconds
        return 0.0 if begin is None else time.monotonic() - begin

    @property
    def counters(self) -> Counters:
        """The counters of the leader; none of a ledger that does not lead: its would be old."""
        writer = self._writer
        return Counters() if writer is None or not self.leads else writer.counters

    @property
    def sequence(self) -> int | None:
        """Number of the newest event in the store; None where this ledger does not lead."""
        writer = self._writer
        return None if writer is None else writer.sequence

    def start(self) -> None:
        """Takes the lead where nobody has it."""
        if self._is_shareable:
            self._watch.start()
        with suppress(SQLAlchemyError):
            self.settle_due()

    def stop(self) -> None:
        """Gives the lead to whoever waits for it."""
        self._stop.set()
        self._step_down()

    def write(self, submissions: Sequence[Submission]) -> None:
        """Stores submissions, or leaves them for the leader; raises as ``StoreWriter.write``."""
        with self._asking():
            if self._writer is not None:
                # What a node has sent before to another ledger comes first.
                self._remove_from_inbox()
                self._writer.write(submissions)
            elif self.inbox_size < MAX_INBOX_DELIVERIES:
                write_isolated(self._put, submissions)
            else:
                raise LeadLostError(f"{self.inbox_size} deliveries wait for a leader")
            self._written_seconds = time.monotonic()

    def settle_due(self) -> int:
        """Leads where nobody does, empties the inbox, settles jobs; returns how many jobs."""
        with self._asking():
            if time.monotonic() - self._written_seconds > _PROBE_SECONDS:
                with self._engine.begin() as connection:
                    probe_inbox(connection)
                self._written_seconds = time.monotonic()
            if self._writer is None:
                self._take_lead()
            with self._engine.connect() as connection:
                self.inbox_size = count_inbox(connection)
            self._remove_from_inbox()
            if self._writer is None or self._upkeep is None:
                return 0
            num_settled = self._writer.settle_due()
            self._upkeep.take_turn(time.time())
            return num_settled

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Notes since when the store owes an answer; a failure ends the lead.

        Nobody knows then whether the last transaction is in the store: the next term loads it.
        """
        self._begin_seconds = time.monotonic()
        try:
            yield
        except SQLAlchemyError as error:
            if self._holds_lock:
                _log.warning("lead=lost reason=%r", str(error).partition("\n")[0])
            self._step_down()
            raise
        finally:
            self._begin_seconds = None

    def _take_lead(self) -> None:
        if self._is_shareable:
            with self._engine.begin() as connection:
                question = text("SELECT pg_try_advisory_lock(:lock)")
                if not connection.execute(question, {"lock": WRITER_LOCK}).scalar():
                    return
                self._holds_lock = True
        self._writer = self._open_writer(self._engine)
        self._upkeep = Upkeep(self._engine, self._retention)
        with self._engine.connect() as connection:
            rows = connection.execute(select(counter_bases)).all()
        self.bases = {row.counter: row.base for row in rows}
        _log.info("lead=taken sequence=%s", self._writer.sequence)

    def _step_down(self) -> None:
        self._writer, self._socket = None, None
        self._holds_lock, self._written_seconds = False, float("-inf")
        if self._is_shareable:
            self._engine.dispose()

    def _put(self, submissions: Sequence[Submission]) -> None:
        """Leaves checked events for the leader, who alone can tell which of them are duplicates."""
        rows = [
            {"client": s.client[:200], "events": _encode(_Left(s.speaker, [*s.events])).decode()}
            for s in submissions
            if s.events
        ]
        with self._engine.begin() as connection:
            if rows:
                connection.execute(insert(inbox), rows)
            for submission in submissions:
                letters.keep(connection, submission.refused, submission.client, time.time())
                submission.stored = len(submission.events)

    def _remove_from_inbox(self) -> None:
        """Stores what others took; what is stored twice, after a kill between, counts once."""
        for _ in range(_MAX_BATCHES if self._is_shareable or self.inbox_size else 0):
            with self._engine.connect() as connection:
                waiting = connection.execute(_OLDEST).all()
            if not waiting or self._writer is None:
                break
            left = [(row.client, _decode(row.events)) for row in waiting]
            self._writer.write([Submission(o.events, [], client, o.speaker) for client, o in left])
            with self._engine.begin() as connection:
                remove_from_inbox(connection, [row.number for row in waiting])
            self._begin_seconds = time.monotonic()

    def _cut_lost(self) -> None:
        """Shuts the socket of a question whose answer is lost, so that it fails."""
        while not self._stop.wait(_TICK_SECONDS):
            descriptor = self._socket
            if descriptor is not None and self.waiting_seconds > ANSWER_SECONDS:
                _log.error("answer=lost seconds=%.0f", self.waiting_seconds)
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)


MAX_INBOX_DELIVERIES = 20_000
"""Some minutes of a large cluster. More is refused, and stays with the senders."""
_encode = msgspec.json.Encoder().encode


class _Left(msgspec.Struct, array_like=True):
    """A delivery that waits for the leader."""

    speaker: Speaker
    events: list[Event]


_decode = msgspec.json.Decoder(_Left).decode


def count_inbox(connection: Connection) -> int:
    """How many deliveries wait."""
    return connection.execute(select(func.count()).select_from(inbox)).scalar() or 0


def remove_from_inbox(connection: Connection, numbers: Sequence[int]) -> None:
    """Removes deliveries whose events are stored."""
    connection.execute(delete(inbox).where(inbox.c.number.in_(numbers)))


def probe_inbox(connection: Connection) -> None:
    """Writes and leaves nothing: fails where the store takes no events, as on a full disk."""
    query = insert(inbox).values(client="", events="[]").returning(inbox.c.number)
    remove_from_inbox(connection, [connection.execute(query).scalar_one()])
