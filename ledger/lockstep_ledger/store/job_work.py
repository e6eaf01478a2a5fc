"""Brings the record of a job up to date with new events of it."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, func, select, text

from lockstep_ledger.merge.counted import Effects, Mark, group_of, mark_of, tally
from lockstep_ledger.merge.derive import STRUCTURAL, Derivation
from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.merge.outcome import SettleTimeouts
from lockstep_ledger.merge.precedence import SCHEDULER, machine_of, order_of
from lockstep_ledger.merge.record import Record
from lockstep_ledger.merge.spans import PART_PREFIX, Frame, Span, WindowRow
from lockstep_ledger.merge.sweep import Source, sweep
from lockstep_ledger.store.database import chunks_of
from lockstep_ledger.store.job_states import JobState, changed_spans, remove, upsert
from lockstep_ledger.store.tables import events, marks, spans
from lockstep_outcomes.evidence import NodeEvent
from lockstep_records.events.event import Event

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_MAX_INCIDENTS = 200
_JOB_EVENTS = select(events).where(events.c.job == bindparam("number"))
_NODE_EVENTS = _JOB_EVENTS.where(
    events.c.node.in_(bindparam("nodes", expanding=True)), events.c.time >= bindparam("since")
)
_EVER = -1e300
# As text: SQLite takes a partial index only for the very words of its condition.
_INCIDENTS = (
    select(events)
    .where(
        events.c.job == bindparam("number"),
        text("kind = 'node_event'"),
        events.c.time >= bindparam("since"),
        events.c.time < bindparam("until"),
    )
    .order_by(events.c.time, events.c.id)
    .limit(_MAX_INCIDENTS)
)


class JobWork:
    """Brings one job up to date with its pending events, which are stored already."""

    def __init__(
        self,
        state: JobState,
        connection: Connection,
        effects: Effects,
        timeouts: SettleTimeouts | None = None,
    ) -> None:
        self._state, self._connection, self._effects = state, connection, effects
        self._timeouts = timeouts or SettleTimeouts()
        self._new = {event.id for event in state.pending}
        self._rows: list[WindowRow] = []
        self._is_growth = False
        # All that is stored of a new job is pending.
        self._is_first = state.record is None and not state.begins_anew
        self._stored: dict[str, list[Event]] = {}

    def run(self) -> Record:
        """Applies the events and derives the record; counters are booked by the caller."""
        state = self._state
        if state.begins_anew:
            self._begin_anew()
        else:
            self._apply()
        if SCHEDULER in state.sources:
            state.facts.requeue_waits = state.sources[SCHEDULER].requeue_waits
        state.pending = []
        record = self._derive()
        group = state.facts.booked.group
        self._effects.count(group if group[0] else record.group, self._rows)
        if group[0] and group[3] != record.job_class:
            rows = self.stream_rows()
            self._effects.count(group, rows, sign=-1)
            self._effects.count(record.group, rows)
        return record

    def _apply(self) -> None:
        state = self._state
        before = state.frame
        state.pending = [*filter(state.facts.weighs, state.pending)]
        self._is_growth = not any(event.kind in STRUCTURAL for event in state.pending)
        by_source: dict[str, list[Event]] = defaultdict(list)
        for event in state.pending:
            state.facts.take(event)
            for name in _sources_of(event):
                by_source[name].append(event)
        new = [name for name in by_source if name[:1] != PART_PREFIX and name not in state.sources]
        self._stored = {**by_source} if self._is_first else self._read_nodes(new)
        # The scheduler's spans are swept first: they tell a node's restarts from its later runs.
        if SCHEDULER in by_source:
            self._add(SCHEDULER, by_source.pop(SCHEDULER), before, before)
        frame = state.frame
        others = state.sources.keys() - by_source if before != frame else ()
        for name in (*by_source, *sorted(others)):
            self._add(name, by_source[name], before, frame)
        self._count_marks(state.pending)

    def _begin_anew(self) -> None:
        state, old = self._state, self._state.facts
        state.facts = facts = JobFacts(
            old.cluster, old.job_id, old.number, old.ids, old.aliases, old.instances, old.owner,
            named=old.named, holder=old.holder, wishes=old.wishes, nodes=old.nodes,
            is_scheduled=old.is_scheduled, claimants=old.claimants,
        )  # fmt: skip
        facts.booked, state.sources, state.begins_anew = old.booked, {}, False
        state.touched.clear()
        remove(self._connection, facts.number)
        names: set[str] = set()

        def taken() -> Iterator[Event]:
            for row in self._connection.execute(_JOB_EVENTS, {"number": facts.number}):
                event = event_of_row(row, facts)
                if facts.weighs(event):
                    facts.take(event)
                    names.update(_sources_of(event))
                    yield event

        self._count_marks(taken())
        for name in sorted(names, key=lambda name: (name != SCHEDULER, name)):
            source, rows = sweep(name, self._read(name), state.frame)
            self._put(source)
            self._rows += rows

    def _derive(self) -> Record:
        state = self._state
        changed = [source.spans[number] for source, number in changed_spans(state)]
        derivation, record = state.derivation, state.record
        if self._is_growth and derivation is not None and record is not None:
            record = msgspec.structs.replace(record, runs=[*record.runs])
            if record.runs:
                record.runs[-1] = msgspec.structs.replace(record.runs[-1])
            if not record.preemptions and derivation.update(record, changed):
                return record
        # By value: the derivation outlives this work, and may not hold the state that holds it.
        incidents = partial(_read_incidents, self._connection, state.facts)
        state.derivation = Derivation(state.facts, state.sources, incidents, self._timeouts)
        state.num_spans = state.derivation.num_spans
        return state.derivation.record()

    def checkpoints(self, until: float) -> tuple[int, float, float]:
        """Number, first and last time of the durable checkpoints up to a time."""
        save_marks(self._connection, self._effects)
        return durable_checkpoints(self._connection, self._state.number, until)

    def _add(self, name: str, added: list[Event], before: Frame, frame: Frame) -> None:
        """Adds events to a source, or sweeps all of it anew where its frame is another."""
        source = self._state.sources.get(name) or Source(name)
        added.sort(key=order_of)
        rows: list[WindowRow] = []
        is_late = False
        for event in added:
            is_late = source.sweeps(event) and source.is_late(event)
            if is_late:
                break
            rows += source.take(event, frame)
        if is_late or (before != frame and not source.is_of(frame)):
            prefix = source.list_before(added[0]) if added and before == frame else []
            swept, rows = self._sweep_anew(name, frame, before, prefix)
            if len(swept.spans) < len(source.spans):
                own = (spans.c.job == self._state.number, spans.c.node == name)
                gone = delete(spans).where(*own, spans.c.number >= len(swept.spans))
                self._connection.execute(gone)
            source, self._is_growth = swept, False
        self._put(source)
        self._rows += rows

    def _sweep_anew(
        self, name: str, frame: Frame, before: Frame, prefix: list[Span]
    ) -> tuple[Source, list[WindowRow]]:
        """Sweeps the stored events behind some spans; takes back what they added before."""
        stored = self._read(name, prefix[-1].last[0] if prefix else _EVER)
        swept, rows = sweep(name, stored, frame, prefix)
        old = [event for event in stored if event.id not in self._new]
        old_rows = sweep(name, old, before, prefix)[1] if old else ()
        return swept, rows + [row.times(-1) for row in old_rows]

    def _put(self, source: Source) -> None:
        if source.spans or source.requeue_waits is not None:
            self._state.sources[source.name] = source
            self._state.touched.add(source.name)

    def _read(self, name: str, since: float = _EVER) -> list[Event]:
        if self._is_first:
            return self._stored.get(name, [])
        if name[:1] in {SCHEDULER, PART_PREFIX}:
            if SCHEDULER not in self._stored:
                self._stored |= {SCHEDULER: []} | self._read_nodes([SCHEDULER])
            return self._stored.get(name, [])
        # A node whose spans begin is read with the others of the delivery.
        found = self._stored.pop(name, None)
        return self._read_nodes([name], since).get(name, []) if found is None else found

    def _read_nodes(self, nodes: Sequence[str], since: float = _EVER) -> dict[str, list[Event]]:
        facts, found = self._state.facts, defaultdict[str, list[Event]](list)
        for some in chunks_of(nodes):
            values = {"number": facts.number, "nodes": some, "since": since}
            for row in self._connection.execute(_NODE_EVENTS, values):
                event = event_of_row(row, facts)
                for source in _sources_of(event) if facts.weighs(event) else ():
                    found[source].append(event)
        return found

    def _count_marks(self, added: Iterable[Event]) -> None:
        """Counts what is counted once, where it is new or was reported earlier than before."""
        reported: dict[Mark, dict[int, float]] = defaultdict(dict)
        facts = self._state.facts
        for event in added:
            found = mark_of(event)
            if found is None:
                continue
            times, number = reported[group_of(found)], found[2]
            times[number] = min(event.time, times.get(number, event.time))
            if found[0] == "checkpoint":
                newest = (event.time, event.count("step"))
                facts.checkpoint = max(facts.checkpoint or newest, newest, key=lambda c: c[0])
        stored = Marks() if self._is_first else held_marks(self._connection, facts.number, reported)
        for group, times in reported.items():
            old = stored.get(group, {})
            earlier = {n: time for n, time in times.items() if time < old.get(n, float("inf"))}
            if earlier:
                for sign, marked in ((-1, old), (1, {**old, **earlier})):
                    counts, added_rows = tally(group, marked)
                    for name, number in counts.items():
                        facts.counts[name] = facts.counts.get(name, 0) + sign * number
                    self._rows += [row.times(sign) for row in added_rows]
                key = {"job": facts.number, "what": group[0], "attempt": group[1]}
                rows = ({**key, "number": n, "time": time} for n, time in earlier.items())
                self._effects.marks += rows

    def stream_rows(self) -> list[WindowRow]:
        """The rows in the windows that follow from events: goodput, checkpoints, resumes."""
        rows: list[WindowRow] = []
        facts = self._state.facts
        save_marks(self._connection, self._effects)
        for name in self._state.sources:
            rows += sweep(name, self._read(name), self._state.frame)[1]
        for group, times in all_marks(self._connection, facts.number).items():
            rows += tally(group, times)[1]
        return rows


def _sources_of(event: Event) -> Iterator[str]:
    if event.source == SCHEDULER and event.kind.startswith("resources_"):
        yield f"{PART_PREFIX}{event.text('part')}"
    yield event.source


def _read_incidents(
    connection: Connection, facts: JobFacts, since: float, until: float
) -> Sequence[NodeEvent]:
    values = {"number": facts.number, "since": since, "until": until}
    rows = (event_of_row(row, facts) for row in connection.execute(_INCIDENTS, values))
    return [_incident(event) for event in rows if facts.weighs(event)]


def _incident(event: Event) -> NodeEvent:
    fields = event.fields
    ranks = fields.get("ranks")
    numbers = tuple(ranks[:256]) if isinstance(ranks, list) else ()
    sign, detail = fields.get("sign"), str(fields.get("detail") or "")[:300]
    return NodeEvent(
        sign=sign if isinstance(sign, str) else "", node=event.node or None, ranks=numbers,
        detail=detail, time=event.time,
    )  # fmt: skip


def event_of_row(row: Row[Any], facts: JobFacts) -> Event:
    """A stored event."""
    body = _decode(row.body)
    return Event(
        id=row.id, kind=row.kind, cluster=facts.cluster, job_id=facts.job_id,
        node=machine_of(row.node, body), launcher=body.pop("launcher", None),
        attempt=row.attempt, time=row.time, received=row.received, fields=body.pop("fields"),
        owner=body.pop("owner", None), extra=body,
    )  # fmt: skip


_ALL = select(marks).where(marks.c.job == bindparam("job"))
_ATTEMPT_MARKS = _ALL.where(marks.c.attempt.in_(bindparam("attempts", expanding=True)))
_CHECKPOINTS = _ATTEMPT_MARKS.where(
    marks.c.what == "checkpoint", marks.c.number.in_(bindparam("steps", expanding=True))
)
_OTHERS = _ATTEMPT_MARKS.where(marks.c.what.in_(bindparam("kinds", expanding=True)))
_DURABLE = select(func.count(), func.min(marks.c.time), func.max(marks.c.time)).where(
    marks.c.job == bindparam("job"),
    marks.c.what == "checkpoint",
    marks.c.time <= bindparam("until"),
)
Marks = dict[Mark, dict[int, float]]
"""Earliest report by number, by group."""


def all_marks(connection: Connection, job: int) -> Marks:
    """The stored marks of a job."""
    return _group_marks(connection.execute(_ALL, {"job": job}))


def save_marks(connection: Connection, effects: Effects) -> None:
    """Writes the marks that were found."""
    upsert(connection, marks, effects.marks)
    effects.marks.clear()


def held_marks(connection: Connection, job: int, groups: Collection[Mark]) -> Marks:
    """The stored marks of some groups of a job.

    A delivery may report hundreds of checkpoints: they are read together, by key.
    """
    steps = sorted({group[2] for group in groups if group[0] == "checkpoint"})
    others = {group[0] for group in groups} - {"checkpoint"}
    values = {"job": job, "attempts": {group[1] for group in groups}}
    answers = [
        connection.execute(_CHECKPOINTS, {**values, "steps": some}) for some in chunks_of(steps)
    ]
    if others:
        answers.append(connection.execute(_OTHERS, {**values, "kinds": others}))
    return _group_marks(chain.from_iterable(answers))


def durable_checkpoints(connection: Connection, job: int, until: float) -> tuple[int, float, float]:
    """Number, first and last time of the durable checkpoints of a job up to a time."""
    number, first, last = connection.execute(_DURABLE, {"job": job, "until": until}).one()
    return number, first or 0.0, last or 0.0


def _group_marks(rows: Iterable[Row[Any]]) -> Marks:
    found: Marks = defaultdict(dict)
    for row in rows:
        found[group_of((row.what, row.attempt, row.number))][row.number] = row.time
    return found
