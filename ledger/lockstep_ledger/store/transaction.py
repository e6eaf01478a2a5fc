"""One transaction of the store: new events, the jobs they change, the counters, refused events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from lockstep_ledger.ingest.document import RefusedEvent
from lockstep_ledger.merge.apply import apply_event
from lockstep_ledger.merge.effects import Effects, SloRow
from lockstep_ledger.merge.event import LedgerEvent
from lockstep_ledger.merge.job import Job, job_of_json
from lockstep_ledger.merge.settlement import SettleTimeouts
from lockstep_ledger.store import letters
from lockstep_ledger.store.counters import Counters
from lockstep_ledger.store.tables import events, jobs, slo_events
from lockstep_records.events.event import stable_id

_CHUNK = 500  # SQLite takes 999 parameters in builds of before 2020
# Built once: SQLAlchemy would spend as long on building them as the database on their work.
_STORED_IDS = select(events.c.id).where(events.c.id.in_(bindparam("ids", expanding=True)))
_RECORDS = select(jobs.c.cluster, jobs.c.job_id, jobs.c.state).where(
    jobs.c.job_id.in_(bindparam("ids", expanding=True))
)
_ADD_EVENTS, _ADD_JOBS, _ADD_SLO_EVENTS = insert(events), insert(jobs), insert(slo_events)
_CHANGE_JOBS = (
    update(jobs)
    .where(jobs.c.number == bindparam("job_number"))
    .values({c.name: bindparam(c.name) for c in jobs.c if c.name != "number"})
)
_JOB_COLUMNS = tuple(c.name for c in jobs.c if c.name != "state")
_job_values = attrgetter(*_JOB_COLUMNS)


@dataclass(slots=True)
class Submission:
    """The events of one request, and what became of them.

    Attributes:
        refused: those that were refused by themselves, and later those that do not fit their job.
        client: who sent them.
        duplicates: number of events that were stored before.
    """

    events: Sequence[LedgerEvent] = ()
    refused: list[RefusedEvent] = field(default_factory=list)
    client: str = ""
    stored: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class WriterState:
    """What the writer has in memory of its store.

    Attributes:
        sequence, num_jobs: highest numbers given to an event and to a job.
        cache: records of jobs; the one that was used last is the last.
    """

    timeouts: SettleTimeouts
    counters: Counters = field(default_factory=Counters)
    cache: dict[tuple[str, str], Job] = field(default_factory=dict)
    sequence: int = 0
    num_jobs: int = 0


class Transaction:
    """The work inside one transaction of the writer."""

    def __init__(
        self,
        state: WriterState,
        connection: Connection,
        submissions: Sequence[Submission],
        now_seconds: float,
    ) -> None:
        self._state, self._connection, self._submissions = state, connection, submissions
        self._now_seconds = now_seconds
        self._events = [event for submission in submissions for event in submission.events]
        self._effects = Effects()
        self._rows: list[dict[str, Any]] = []
        self._changed: dict[tuple[str, str], Job] = {}
        self._new: set[tuple[str, str]] = set()

    def run(self) -> None:
        """Applies the events and writes everything."""
        state, connection = self._state, self._connection
        seen = self._stored_ids()
        self._load_jobs()
        for submission in self._submissions:
            for event in submission.events:
                if event.id in seen:
                    submission.duplicates += 1
                elif self._apply(submission, event):
                    seen.add(event.id)
        state.counters.apply(self._effects, self._now_seconds)
        if self._rows:
            connection.execute(_ADD_EVENTS, self._rows)
        self._save_jobs()
        state.counters.save(connection)
        if self._effects.slo_rows:
            rows = [self._slo_row(row) for row in self._effects.slo_rows]
            connection.execute(_ADD_SLO_EVENTS, rows)
        for submission in self._submissions:
            letters.keep(connection, submission.refused, submission.client, self._now_seconds)

    def _stored_ids(self) -> set[str]:
        ids = [event.id for event in self._events]
        found: set[str] = set()
        for chunk in _chunks(ids):
            rows = self._connection.execute(_STORED_IDS, {"ids": chunk})
            found.update(row.id for row in rows)
        return found

    def _load_jobs(self) -> None:
        cache = self._state.cache
        missing = {event.key for event in self._events if event.key not in cache}
        for chunk in _chunks(sorted({job_id for _, job_id in missing})):
            for row in self._connection.execute(_RECORDS, {"ids": chunk}):
                if (row.cluster, row.job_id) in missing:
                    cache[row.cluster, row.job_id] = job_of_json(row.state)

    def _apply(self, submission: Submission, event: LedgerEvent) -> bool:
        cache = self._state.cache
        job = cache.get(event.key) or Job(
            cluster=event.cluster, job_id=event.job_id, number=self._state.num_jobs + 1
        )
        refused = apply_event(job, event, self._effects, self._state.timeouts)
        if refused is not None:
            submission.refused.append(letter_of(event, refused.refusal, refused.sentence))
            return False
        if event.key not in cache:
            self._state.num_jobs += 1
            self._new.add(event.key)
            cache[event.key] = job
        submission.stored += 1
        self._changed[event.key] = job
        # Used last is dropped last.
        cache[event.key] = cache.pop(event.key)
        self._state.sequence += 1
        self._rows.append(_event_row(event, self._state.sequence, job.number))
        return True

    def _save_jobs(self) -> None:
        new = [_job_row(job) for key, job in self._changed.items() if key in self._new]
        old = [
            {**_job_row(job), "job_number": job.number}
            for key, job in self._changed.items()
            if key not in self._new
        ]
        if new:
            self._connection.execute(_ADD_JOBS, new)
        if old:
            self._connection.execute(_CHANGE_JOBS, old)

    def _slo_row(self, row: SloRow) -> dict[str, Any]:
        cluster, job_class = self._state.counters.counted_names(row.cluster, row.job_class)
        return {
            "time": row.time_seconds,
            "cluster": cluster,
            "job_class": job_class,
            "slo": row.slo,
            "good": row.good,
            "total": row.total,
        }


def letter_of(event: LedgerEvent, refusal: str, sentence: str) -> RefusedEvent:
    """The dead letter of an event that is refused here."""
    return RefusedEvent(
        refusal=refusal,
        reason=sentence,
        id=event.id,
        job_id=event.job_id,
        node=event.node,
        body=event.body,
        # A stranger who goes on sending fills no table.
        once=stable_id(*event.key, event.owner) if refusal == "owner" else None,
    )


def _event_row(event: LedgerEvent, sequence: int, job: int) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "id": event.id,
        "job": job,
        "kind": event.kind,
        "node": event.node,
        "attempt": event.attempt,
        "time": event.time_seconds,
        "received": event.received_seconds,
        "body": event.body,
    }


def _job_row(job: Job) -> dict[str, Any]:
    row = dict(zip(_JOB_COLUMNS, _job_values(job), strict=True))
    return {**row, "cause": job.cause and job.cause[:64], "state": job.to_json()}


def _chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]
