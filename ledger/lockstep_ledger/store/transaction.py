"""One transaction of the store: new events, the jobs they change, the counters, refused events."""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, insert, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from lockstep_ledger.ingest.document import RefusedEvent
from lockstep_ledger.ingest.speakers import OPERATOR, RELATIONS, RULES, Speaker, relation
from lockstep_ledger.merge import counted
from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.merge.outcome import SettleTimeouts
from lockstep_ledger.merge.precedence import body_of
from lockstep_ledger.merge.record import Record, price
from lockstep_ledger.merge.spans import Refused, implausible
from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store import job_states
from lockstep_ledger.store.counters import Counters
from lockstep_ledger.store.database import rows_by_name
from lockstep_ledger.store.job_states import JobState, KnownJobs
from lockstep_ledger.store.job_work import JobWork, save_marks
from lockstep_ledger.store.joins import Joins, aliases_of
from lockstep_ledger.store.tables import agents, amendments, events, slo_events
from lockstep_outcomes.prices.price import Pricing
from lockstep_records.events.event import Event, stable_id

_log = logging.getLogger(__name__)
# Built once: SQLAlchemy would spend as long on building them as the database on their work.
_STORED = select(events.c.id, events.c.node, events.c.body).where(
    events.c.id.in_(bindparam("names", expanding=True))
)
_Source = tuple[bool, int | None]
"""Whether a scheduler sent an event, and the user of it."""
_ADD_EVENTS, _ADD_SLO_EVENTS, _ADD_AMENDMENTS = (
    insert(events), insert(slo_events), insert(amendments)
)  # fmt: skip


@dataclass(slots=True)
class Submission:
    """The events of one request, and what became of them; more of them are refused when written."""

    events: Sequence[Event] = ()
    refused: list[RefusedEvent] = field(default_factory=list)
    client: str = ""
    speaker: Speaker = OPERATOR
    stored: int = 0
    duplicates: int = 0

    def answer(self) -> dict[str, Any]:
        """What the sender is told, as JSON (docs/formats/event-delivery.md)."""
        names = ("id", "refusal", "reason")
        rejected = [{name: getattr(letter, name) for name in names} for letter in self.refused]
        return {"stored": self.stored, "duplicates": self.duplicates, "rejected": rejected}


@dataclass(slots=True)
class WriterState:
    """What the writer has in memory of its store.

    Attributes:
        pins: the node of each agent's token that names none.
    """

    timeouts: SettleTimeouts
    counters: Counters = field(default_factory=Counters)
    pricing: Pricing = field(default_factory=Pricing)
    memory: KnownJobs = field(default_factory=KnownJobs)
    pins: dict[str, str] = field(default_factory=dict)
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
        self._effects = counted.Effects()
        self._rows: list[dict[str, Any]] = []
        self._amendments: list[dict[str, Any]] = []
        self._changed: dict[int, JobState] = {}
        self._new: set[int] = set()
        self._joins = Joins(state.memory, connection, self._effects, self._changed, self._rows)

    def run(self) -> None:
        """Stores the events, derives the jobs that they change, and writes everything."""
        state, connection = self._state, self._connection
        seen = self._separate_ids()
        batch = [event for submission in self._submissions for event in submission.events]
        new = [event for event in batch if event.id not in seen]
        state.memory.read(connection, {event.key for event in new})
        state.memory.read_aliases(connection, {(e.key[0], a) for e in new for a in aliases_of(e)})
        newest: dict[int, Event] = {}
        for submission in self._submissions:
            for event in submission.events:
                if event.id in seen:
                    submission.duplicates += 1
                elif self._accept(submission, self._joins.locate(event)):
                    seen.add(event.id)
                    newest[self._rows[-1]["job"]] = last = event
        state.memory.save_claims(connection)
        if self._rows:
            connection.execute(_ADD_EVENTS, self._rows)
        for job in self._changed.values():
            self._derive(job, newest.get(job.number, last))
        self._save()
        for submission in self._submissions:
            letters.keep(connection, submission.refused, submission.client, self._now_seconds)

    def _separate_ids(self) -> set[str]:
        """The ids that are stored; an event under an id of another source's gets one of its own.

        Ids of a scheduler's events can be guessed: nobody else takes their place.
        """
        ids = {event.id for submission in self._submissions for event in submission.events}
        rows = list(rows_by_name(self._connection, _STORED, ids))
        taken = {row.id: (not row.node, json.loads(row.body).get("owner")) for row in rows}
        seen, renamed = set(taken), set[str]()
        for submission in self._submissions:
            own = [_with_own_id(event, taken) for event in submission.events]
            renamed |= {each.id for each in own} - ids
            submission.events = own
        if renamed:
            seen |= {row.id for row in rows_by_name(self._connection, _STORED, renamed)}
        return seen

    def reprice(self, keys: Sequence[tuple[str, str]]) -> None:
        """Prices jobs by the rate card that holds now."""
        state, reason = self._state, f"rate card {self._state.pricing.digest}"
        state.memory.read(self._connection, keys)
        for job in filter(None, map(state.memory.get, keys)):
            assert job.record is not None
            self._changed[job.number] = job
            record = msgspec.structs.replace(job.record)
            self._book(job, JobWork(job, self._connection, self._effects), record, reason, "")
        self._save()

    def _save(self) -> None:
        state, connection = self._state, self._connection
        save_marks(connection, self._effects)
        job_states.save(connection, self._changed.values(), self._new)
        state.counters.apply(self._effects, self._now_seconds)
        state.counters.save(connection)
        if slo_rows := state.counters.slo_values(self._effects):
            connection.execute(_ADD_SLO_EVENTS, slo_rows)
        if self._amendments:
            connection.execute(_ADD_AMENDMENTS, self._amendments)

    def _accept(self, submission: Submission, event: Event) -> bool:
        state = self._state
        held = state.memory.get(event.key)
        job = held or JobState(JobFacts(*event.key, state.num_jobs + 1))
        refused = self._refuse(job, event, submission.speaker, is_new=held is None)
        if refused is not None:
            submission.refused.append(letter_of(event, refused, submission.speaker))
            return False
        if held is None:
            state.num_jobs += 1
            self._new.add(job.number)
            state.memory.add(event.key, job)
            job.facts.holder = submission.speaker.token
        submission.stored += 1
        job.facts.note_owner(event)
        job.facts.name(event, state.sequence + 1)
        job = self._joins.note(job, event, submission.speaker)
        self._changed[job.number] = job
        job.pending.append(event)
        state.sequence += 1
        self._rows.append(_event_row(event, state.sequence, job.number))
        return True

    def _refuse(
        self, job: JobState, event: Event, speaker: Speaker, *, is_new: bool
    ) -> Refused | None:
        """Why the speaker may not say this of the job; None where the table allows it."""
        facts = job.facts
        related = "new" if is_new else relation(event, facts.holder, facts.owner, speaker)
        if related not in RULES[speaker.scope].relations:
            users = [
                "of no known user" if each is None else f"of user {each}"
                for each in (facts.owner, event.owner)
            ]
            return Refused(
                "owner",
                f"job {event.job_id} of cluster {event.cluster} is {users[0]}, and {event.kind} of"
                f" {event.source} is {users[1]} ({speaker}): {RELATIONS[related]}; choose an id"
                " that nobody has",
            )
        if speaker.is_pinned and speaker.node != (pinned := self._pin(speaker)):
            return Refused("scope", f"the token of {speaker} has spoken of node {pinned} before")
        return implausible(event, job.sources, facts.value("num_nodes"), job.num_spans)

    def _pin(self, speaker: Speaker) -> str:
        """The node of an agent's token that names none: the first of which it spoke."""
        pins, token = self._state.pins, speaker.token
        if token not in pins:
            query = select(agents.c.node).where(agents.c.token == token)
            node = self._connection.execute(query).scalar()
            if node is None:
                node = speaker.node
                self._connection.execute(insert(agents).values(token=token, node=node))
                _log.info("pinned speaker=%r; tokens with node= need no first word", str(speaker))
            pins[token] = node
        return pins[token]

    def _derive(self, job: JobState, newest: Event) -> None:
        work = JobWork(job, self._connection, self._effects, self._state.timeouts)
        late_seconds = newest.received_seconds - newest.time
        source = newest.source or "the scheduler"
        reason = f"{newest.kind} of {source} came {late_seconds:.0f} s after its time"
        self._book(job, work, work.run(), reason, newest.id)

    def _book(
        self, job: JobState, work: JobWork, record: Record, reason: str, event_id: str
    ) -> None:
        price(record, self._state.pricing)
        audit = {
            "time": self._now_seconds, "job": job.number, "why": reason, "event_id": event_id
        }  # fmt: skip
        for change in book(job.facts, job.record, record, work.checkpoints, self._effects):
            texts = {name: str(value) for name, value in change.items()}
            self._amendments.append({**audit, **texts})
        job.record = record


def letter_of(event: Event, refused: Refused, speaker: Speaker) -> RefusedEvent:
    """The dead letter of an event that is refused here."""
    return RefusedEvent(
        refusal=refused.refusal,
        reason=refused.sentence,
        id=event.id,
        job_id=event.job_id,
        node=event.source,
        body=json.dumps(event.document() | speaker.signature()),
        # A stranger who goes on sending fills no table.
        once=stable_id(*event.key, event.owner) if refused.refusal == "owner" else None,
    )


def _with_own_id(event: Event, taken: dict[str, _Source]) -> Event:
    source = (not event.source, event.owner)
    is_scheduler, owner = taken.setdefault(event.id, source)
    if is_scheduler == source[0] and (None in {owner, event.owner} or owner == event.owner):
        return event
    return replace(event, id=stable_id(event.id, *source))


def _event_row(event: Event, sequence: int, job: int) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "id": event.id,
        "job": job,
        "kind": event.kind,
        "node": event.source,
        "attempt": event.attempt,
        "time": event.time,
        "received": event.received_seconds,
        "body": body_of(event),
    }


_WATCHED = (
    "outcome", "failure_class", "cause", "cause_node", "project", "queue", "started", "ended",
    "attempts", "requeues", "preemptions", "resumes", "checkpoints", "gpu_seconds", "costs",
)  # fmt: skip
"""Fields of a finished job whose change is an amendment."""
_NOISE = 1e-6
Change = dict[str, Any]


def book(
    facts: JobFacts, before: Record | None, record: Record, checkpoints: counted.Checkpoints,
    effects: counted.Effects,
) -> list[Change]:  # fmt: skip
    """Adds what changed to the effects; field, before and after of each amendment."""
    old, group = facts.booked, record.group
    counts, old_counts = counted.counts_of(record), dict(old.counts)
    effects.declare(group)
    fallen: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def record_decrease(name: str, group: tuple[str, ...], before: float, after: float) -> None:
        effects.amend(name, group, before - after)
        fallen[name][0] += before
        fallen[name][1] += after

    is_moved = bool(old_counts) and old.group != group
    for key in old_counts.keys() | counts.keys():
        name, *labels = key
        was, now = old_counts.get(key, 0.0), counts.get(key, 0.0)
        if is_moved:
            record_decrease(name, old.group, was, 0.0)
            effects.add(name, (*group, *labels), now)
        elif now > was + _NOISE:
            effects.add(name, (*group, *labels), now - was)
        elif was > now + _NOISE:
            record_decrease(name, group, was, now)
        elif key in counts:
            counts[key] = was
    rows = counted.rows_of(record, checkpoints)
    effects.count(old.group, old.rows, sign=-1)
    effects.count(group, rows)
    observed = _observe(old.observed, record, effects)
    facts.booked = counted.Booked(group, list(counts.items()), rows, observed)
    changes = [{"field": name, "before": was, "after": now} for name, (was, now) in fallen.items()]
    return [*changes, *_amended_fields(before, record)]


def _observe(observed: list[str], record: Record, effects: counted.Effects) -> list[str]:
    values = counted.observations_of(record)
    new = {metric: value for metric, value in values.items() if metric.name not in observed}
    for metric, value in new.items():
        effects.observe(metric, record.group, value)
    return [*observed, *(metric.name for metric in new)]


def _amended_fields(before: Record | None, record: Record) -> Iterator[Change]:
    if before is None or before.status != "finished":
        return
    for name in ("status", *_WATCHED):
        was, now = getattr(before, name), getattr(record, name)
        if not _is_same(was, now):
            yield {"field": name, "before": was, "after": now}


def _is_same(was: Any, now: Any) -> bool:
    if isinstance(was, dict) and was.keys() == now.keys():
        return all(_is_same(was[name], now[name]) for name in was)
    if isinstance(was, float) and isinstance(now, float):
        return abs(was - now) <= _NOISE
    return bool(was == now)


_REFUSAL = "value"


def write_isolated(
    write: Callable[[Sequence[Submission]], None], submissions: Sequence[Submission]
) -> None:
    """Writes submissions in one transaction; if an event makes that fail, in smaller ones.

    The batch is halved until the event is found, which becomes a dead letter. On a SQLAlchemyError
    the store has failed; it may hold a part of the submissions.
    """
    try:
        write(submissions)
    except Exception as error:
        if _is_of_store(error):
            raise
        if len(submissions) > 1:
            half = len(submissions) // 2
            write_isolated(write, submissions[:half])
            write_isolated(write, submissions[half:])
        elif submissions:
            _write_parts(write, submissions[0], error)


def _write_parts(
    write: Callable[[Sequence[Submission]], None], submission: Submission, error: Exception
) -> None:
    events, half = submission.events, len(submission.events) // 2
    if not events:
        _log.error("letters=lost client=%r reason=%r", submission.client, error)
        return
    if len(events) == 1:
        reason = f"{events[0].kind} of job {events[0].job_id} cannot be applied ({error!r:.300})"
        _log.error("event=refused id=%s reason=%r", events[0].id, reason)
        refused = Refused(_REFUSAL, f"{reason}; it is kept here and left out")
        letter = letter_of(events[0], refused, submission.speaker)
        parts = [replace(submission, events=(), refused=[letter])]
    else:
        parts = [replace(submission, events=e, refused=[]) for e in (events[:half], events[half:])]
    parts.append(replace(submission, events=()))
    for part in parts:
        write_isolated(write, [part])
    submission.stored = sum(part.stored for part in parts)
    submission.duplicates = sum(part.duplicates for part in parts)
    submission.refused = [letter for part in parts for letter in part.refused]


def _is_of_store(error: Exception) -> bool:
    """Whether the database failed; of values that it cannot take the event is guilty."""
    if isinstance(error, DataError | IntegrityError):
        return False
    # A statement that failed before the database saw it held something that is not a value.
    is_of_values = isinstance(error, StatementError) and not isinstance(error, DBAPIError)
    return isinstance(error, SQLAlchemyError) and not is_of_values
