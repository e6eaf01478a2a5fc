"""Writes to a store that several ledgers may share: one leads, the others leave it deliveries.

The leader writes by one connection, whose session holds a lock: without the connection it leads no
more, so no transaction of an earlier leader can follow one of the next.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, create_engine, delete, event, func, insert, select, text
from sqlalchemy.exc import SQLAlchemyError

from lockstep_ledger.ingest.speakers import Speaker
from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store.counters import Counters
from lockstep_ledger.store.database import WRITER_LOCK, connect_arguments
from lockstep_ledger.store.retention import Retention, Upkeep
from lockstep_ledger.store.tables import counter_bases, inbox
from lockstep_ledger.store.transaction import Submission, write_isolated
from lockstep_ledger.store.writer import StoreWriter
from lockstep_records.events.event import Event

_log = logging.getLogger(__name__)
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

    With SQLite, whose file is locked for the process, this ledger always leads. All methods but
    the properties are called by one thread.

    Args:
        engine: an open store.
        open_writer: makes a writer that has loaded what the store holds.
        retention: what is kept for how long; everything for ever when left out.

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
        """Stores submissions, or leaves them for the leader.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the store failed; what it holds is stored for good.
        """
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
        """The work between deliveries: leads where nobody does, empties the inbox, settles jobs.

        Returns how many jobs are settled.
        """
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
