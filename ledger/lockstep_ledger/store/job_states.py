"""State of a job that the writer keeps between transactions, in memory and in the store."""

import functools
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
from sqlalchemy import Connection, Dialect, Row, Table, bindparam, delete, insert, select, update

from lockstep_ledger.merge.derive import Derivation
from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.merge.precedence import SCHEDULER
from lockstep_ledger.merge.record import Record, record_of_json
from lockstep_ledger.merge.runs import SLACK_SECONDS
from lockstep_ledger.merge.spans import Frame, Span
from lockstep_ledger.merge.sweep import Source
from lockstep_ledger.store.database import insert_into, rows_by_name
from lockstep_ledger.store.tables import aliases, jobs, marks, spans
from lockstep_records.events.event import Event

_decode_facts = msgspec.json.Decoder(JobFacts).decode
decode_span = msgspec.json.Decoder(Span).decode
_encode = msgspec.json.Encoder().encode
_SPANS = select(spans).where(spans.c.job == bindparam("number")).order_by(spans.c.number)
_ADD_JOBS = insert(jobs)
_CHANGE_JOBS = (
    update(jobs)
    .where(jobs.c.number == bindparam("job_number"))
    .values({c.name: bindparam(c.name) for c in jobs.c if c.name != "number"})
)
_RECORD_COLUMNS = tuple(c.name for c in jobs.c if c.name not in {"state", "facts"})
_record_values = attrgetter(*_RECORD_COLUMNS)


@dataclass(slots=True)
class JobState:
    """A job in the writer's memory.

    Attributes:
        record: as it was last saved; None of a job that is new.
        derivation: of the record, while nothing but the growth of its newest run has changed.
        touched: names of sources that have spans to be saved.
        begins_anew: whether it is derived from all of its events, after it was joined.
    """

    facts: JobFacts
    sources: dict[str, Source] = field(default_factory=dict)
    record: Record | None = None
    pending: list[Event] = field(default_factory=list)
    derivation: Derivation | None = None
    touched: set[str] = field(default_factory=set)
    begins_anew: bool = False
    num_spans: int = 0

    @property
    def frame(self) -> Frame:
        """What the spans of nodes take from the whole job."""
        scheduler = self.sources.get(SCHEDULER)
        begins = [span.begin for span in scheduler.spans if span.has_start] if scheduler else []
        zones = tuple(begin - SLACK_SECONDS for begin in begins)
        return Frame(self.facts.gpus_of_node, zones)

    @property
    def number(self) -> int:
        """Number of the job's row."""
        return self.facts.number


def load(connection: Connection, row: Row[Any]) -> JobState:
    """The state of a job from its rows; ValueError where they cannot be read."""
    state = JobState(_decode_facts(row.facts), record=record_of_json(row.state))
    by_node: dict[str, list[Span]] = defaultdict(list)
    for span in connection.execute(_SPANS, {"number": row.number}):
        by_node[span.node].append(decode_span(span.state))
    state.sources = {name: Source(name, found) for name, found in by_node.items()}
    state.num_spans = sum(map(len, by_node.values()))
    if SCHEDULER in state.sources:
        state.sources[SCHEDULER].requeue_waits = state.facts.requeue_waits
    return state


def remove(connection: Connection, number: int) -> None:
    """Removes the spans and marks of a job."""
    for table in (spans, marks):
        connection.execute(delete(table).where(table.c.job == number))


def save(connection: Connection, states: Collection[JobState], new: Collection[int]) -> None:
    """Writes what changed of jobs; their records are there already."""
    changed = [
        {"job": s.number, "node": source.name, "number": n, "state": _text(source.spans[n])}
        for s in states
        for source, n in changed_spans(s)
    ]
    upsert(connection, spans, changed)
    for state in states:
        for name in state.touched:
            state.sources[name].changed.clear()
        state.touched.clear()
    rows = [_job_row(state) for state in states]
    added = [row for row in rows if row["number"] in new]
    changed_rows = [
        {**row, "job_number": row["number"]} for row in rows if row["number"] not in new
    ]
    if added:
        connection.execute(_ADD_JOBS, added)
    if changed_rows:
        connection.execute(_CHANGE_JOBS, changed_rows)


def changed_spans(state: JobState) -> Iterator[tuple[Source, int]]:
    """Source and number of each span that is to be saved."""
    for name in sorted(state.touched):
        source = state.sources[name]
        for number in sorted(source.changed):
            yield source, number


def upsert(connection: Connection, table: Table, rows: list[Any]) -> None:
    """Adds rows, or replaces those of the same key."""
    if rows:
        connection.execute(_upsert_into(connection.dialect, table), rows)


@functools.lru_cache(maxsize=8)
def _upsert_into(dialect: Dialect, table: Table) -> Any:
    statement = insert_into(dialect, table)
    values = {c.name: statement.excluded[c.name] for c in table.c if not c.primary_key}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=values)


def _text(value: object) -> str:
    return _encode(value).decode()


def _job_row(state: JobState) -> dict[str, Any]:
    record = state.record
    assert record is not None
    row = dict(zip(_RECORD_COLUMNS, _record_values(record), strict=True))
    cause = record.cause and record.cause[:64]
    return {**row, "cause": cause, "state": _text(record), "facts": _text(state.facts)}


ID_PREFIX = "id:"
"""Of an alias that is an id which the job had before it was joined."""
_JOBS = select(jobs.c.cluster, jobs.c.job_id, jobs.c.number, jobs.c.facts, jobs.c.state)
_ID_QUERY = _JOBS.where(jobs.c.job_id.in_(bindparam("names", expanding=True)))
_NUMBER_QUERY = _JOBS.where(jobs.c.number == bindparam("number"))
_ALIASES = select(aliases).where(aliases.c.alias.in_(bindparam("names", expanding=True)))
Key = tuple[str, str]
"""Cluster, and id or alias."""


class KnownJobs:
    """Jobs by number, the one that was used last last, and names that lead to them."""

    def __init__(self) -> None:
        self._states: dict[int, JobState] = {}
        self._numbers: dict[Key, int] = {}
        self._aliases: dict[Key, int | None] = {}
        self._claimed: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._states)

    def clear(self) -> None:
        """Forgets everything."""
        for held in (self._states, self._numbers, self._aliases, self._claimed):
            held.clear()

    def trim(self, most: int) -> None:
        """Forgets the jobs that were used least lately, and names where they are too many."""
        for number in list(self._states)[: max(0, len(self) - most)]:
            del self._states[number]
        if len(self._numbers) + len(self._aliases) > 10 * most:
            self._numbers.clear()
            self._aliases.clear()

    def read(self, connection: Connection, keys: Collection[Key]) -> None:
        """Reads the jobs of ids that are not in memory."""
        missing = {key for key in keys if self.get(key) is None}
        for row in rows_by_name(connection, _ID_QUERY, {job_id for _, job_id in missing}):
            self._load(connection, row)
        earlier = {
            (c, f"{ID_PREFIX}{job_id}") for c, job_id in missing if not self.get((c, job_id))
        }
        self.read_aliases(connection, earlier)
        for cluster, name in earlier:
            number = self._aliases[cluster, name]
            if number is not None:
                self._numbers[cluster, name.removeprefix(ID_PREFIX)] = number
                self.find_number(connection, number)

    def get(self, key: Key) -> JobState | None:
        """A job in memory."""
        state = self._states.get(self._numbers.get(key, 0))
        if state is not None:  # used last is dropped last
            self._states[state.number] = self._states.pop(state.number)
        return state

    def find(self, connection: Connection, key: Key) -> JobState | None:
        """A job, in memory or in the store."""
        self.read(connection, (key,))
        return self.get(key)

    def find_number(self, connection: Connection, number: int) -> JobState:
        """A job of the store."""
        if number not in self._states:
            self._load(connection, connection.execute(_NUMBER_QUERY, {"number": number}).one())
        return self._states[number]

    def add(self, key: Key, state: JobState) -> None:
        """Takes a new job, or another id of one."""
        self._states[state.number] = state
        self._numbers[key] = state.number

    def drop(self, key: Key) -> None:
        """Lets a job be read again."""
        self._states.pop(self._numbers.get(key, 0), None)

    def replace(self, gone: JobState, state: JobState) -> None:
        """Lets all names of a job lead to another."""
        self._states.pop(gone.number, None)
        for names in (self._numbers, self._aliases):
            names.update({name: state.number for name, n in names.items() if n == gone.number})

    def holder(self, connection: Connection, alias: Key) -> int | None:
        """Number of the job that has an alias."""
        self.read_aliases(connection, {alias})
        return self._aliases[alias]

    def claim(self, alias: Key, number: int) -> None:
        """Gives an alias to a job; ``save_claims`` writes it."""
        self._aliases[alias] = self._claimed[alias] = number

    def save_claims(self, connection: Connection) -> None:
        """Writes the aliases that were given to jobs."""
        rows = [{"cluster": c, "alias": a, "job": n} for (c, a), n in self._claimed.items()]
        upsert(connection, aliases, rows)
        self._claimed.clear()

    def read_aliases(self, connection: Connection, names: Collection[Key]) -> None:
        """Reads who has names that are not in memory."""
        missing = {name for name in names if name not in self._aliases}
        self._aliases.update(dict.fromkeys(missing))
        for row in rows_by_name(connection, _ALIASES, {alias for _, alias in missing}):
            self._aliases[row.cluster, row.alias] = row.job

    def _load(self, connection: Connection, row: Any) -> None:
        self._numbers[row.cluster, row.job_id] = row.number
        if row.number not in self._states:
            self._states[row.number] = load(connection, row)
