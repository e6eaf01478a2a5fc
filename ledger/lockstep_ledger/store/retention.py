"""Upkeep of the store: windows are rolled up, old events thinned, names of people blanked."""

import json
import time
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, func, literal, or_, select, update

from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_ledger.merge.precedence import Order, rank_of
from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store.database import insert_into
from lockstep_ledger.store.tables import (
    dead_letters,
    events,
    job_upkeep,
    jobs,
    slo_events,
    slo_rollups,
    spans,
)

_ROWS, _REST_SECONDS, _FOUR = 500, 3600.0, 4
_STARTS = frozenset({"job_started", "attempt_started"})
_KEPT = _STARTS | {
    "job_submitted", "resources_allocated", "resources_released", "attempt_ended", "job_finished",
    "job_preempted", "job_requeued", "job_resumed", "checkpoint_failed", "restore_failed",
    "node_event",
}  # fmt: skip
_MEASURED = frozenset({"goodput", "checkpoint_durable"})
_PERSONAL = frozenset({"user", "name", "reason", "exception", "by"})
"""Fields, in whatever depth, that name people or hold texts of theirs."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is kept after the last event of a settled job; None for ever."""

    events_seconds: float | None = None
    names_seconds: float | None = None


@dataclass(slots=True)
class Thinning:
    """The events of one job, read twice in the order of storing: for starts, then to drop.

    An event is needed while it is the highest or last of something: ``holders`` names the event of
    each such thing and its height.
    """

    job: int
    position: int = 0
    is_second: bool = False
    starts: dict[str, list[Order]] = field(default_factory=lambda: defaultdict(list))
    holders: dict[Hashable, tuple[float, int]] = field(default_factory=dict)
    uses: Counter[int] = field(default_factory=Counter)

    def run_step(self, connection: Connection) -> bool:
        """Reads some events and drops some; returns whether the job is done."""
        rows = _read_events(connection, self.job, self.position)
        dropped: list[int] = []
        for row in rows:
            self.position = row.sequence
            is_spare = row.kind not in _KEPT and not row.kind.startswith("ledger_")
            if self.is_second and is_spare:
                dropped += self._compare(row)
            elif row.kind in _STARTS and not self.is_second:
                insort(self.starts[row.node], _order_of(row))
        if dropped:
            connection.execute(delete(events).where(events.c.sequence.in_(dropped)))
        is_last = len(rows) < _ROWS
        is_done = is_last and self.is_second
        if is_last:
            self.is_second, self.position = True, 0
        return is_done

    def _compare(self, row: Any) -> Iterator[int]:
        for thing, height in self._measure(row):
            before = self.holders.get(thing)
            if before is None or height > before[0]:
                self.holders[thing] = (height, row.sequence)
                self.uses[row.sequence] += 1
                if before is not None:
                    self.uses[before[1]] -= 1
                    if not self.uses[before[1]]:
                        yield before[1]
        if not self.uses[row.sequence]:
            yield row.sequence

    def _measure(self, row: Any) -> Iterator[tuple[Hashable, float]]:
        """For what an event may be needed, and how high it is there."""
        # The end of a silent node is its last event before a start.
        span = (row.node, bisect_right(self.starts[row.node], _order_of(row)))
        yield ("event", *span), row.time
        fields = json.loads(row.body)["fields"] if row.kind in _MEASURED else {}
        if row.kind == "goodput":
            yield ("goodput", *span), row.time
            totals = fields.get("rank_seconds")
            for state, seconds in (totals if isinstance(totals, dict) else {}).items():
                if isinstance(seconds, int | float):
                    yield (row.node, row.attempt, state), seconds
        elif row.kind == "checkpoint_durable":
            step = str(fields.get("step"))
            yield ("first", row.attempt, step), -row.time
            yield ("last", row.attempt, step), row.time


def _order_of(row: Any) -> Order:
    return row.time, row.attempt, rank_of(row.kind), row.id


@dataclass(slots=True)
class Anonymising:
    """Takes names of people, and texts of theirs, out of the events of a job, then out of it."""

    job: int
    position: int = 0

    def run_step(self, connection: Connection) -> bool:
        """Changes some events; returns whether the job is done."""
        rows = _read_events(connection, self.job, self.position)
        for row in rows:
            self.position = row.sequence
            body = _blank_names(row.body)
            if body != row.body:
                change = update(events).where(events.c.sequence == row.sequence)
                connection.execute(change.values(body=body))
        if len(rows) == _ROWS:
            return False
        own = jobs.c.number == self.job
        row = connection.execute(select(jobs.c.state, jobs.c.facts).where(own)).one()
        blank = {"user": "", "name": "", "owner": None, "state": _blank_names(row.state)}
        blank["facts"] = _blank_names(row.facts or "{}")
        connection.execute(update(jobs).where(own).values(blank))
        for span in connection.execute(select(spans).where(spans.c.job == self.job)).all():
            change = update(spans).where(spans.c.job == self.job, spans.c.node == span.node)
            change = change.where(spans.c.number == span.number)
            connection.execute(change.values(state=_blank_names(span.state)))
        return True


_TASKS: tuple[tuple[str, type[Thinning] | type[Anonymising]], ...] = (
    ("thinned", Thinning),
    ("anonymised", Anonymising),
)


def _read_events(connection: Connection, job: int, position: int) -> Sequence[Any]:
    query = select(events).where(events.c.job == job, events.c.sequence > position)
    return connection.execute(query.order_by(events.c.sequence).limit(_ROWS)).all()


def _note(connection: Connection, job: int, column: str) -> None:
    """Notes up to which event a job is done, so that one that gets more is done again."""
    updated = connection.execute(select(jobs.c.updated).where(jobs.c.number == job)).scalar()
    row = insert_into(connection.dialect, job_upkeep).values({"job": job, column: updated})
    connection.execute(row.on_conflict_do_update(index_elements=["job"], set_={column: updated}))


def _blank_names(text: str) -> str:
    def blank(value: Any, name: object = "") -> Any:
        if isinstance(name, str) and name in _PERSONAL and isinstance(value, str | list):
            return type(value)()
        if isinstance(value, list):
            # A disagreement is a source, a field and two values.
            names = [""] * len(value)
            names[2:] = value[1:2] * 2 if len(value) == _FOUR else names[2:]
            return [blank(item, name) for item, name in zip(value, names, strict=True)]
        if isinstance(value, dict):
            return {key: blank(item, key) for key, item in value.items()}
        return value

    return json.dumps(blank(json.loads(text)), separators=(",", ":"))


_TURN_SECONDS = 0.02
_HOUR_SECONDS, _DAY_SECONDS = 3600, 86_400
_KEEP_SECONDS = max(SLO_WINDOWS.values()) + _DAY_SECONDS
_STAGES: tuple[tuple[Table, int, int, int], ...] = (
    (slo_events, 0, 60, _HOUR_SECONDS),
    (slo_rollups, 60, _HOUR_SECONDS, _DAY_SECONDS),
)
"""Table, size of its buckets, size of the next ones, and the age at which rows go there."""
_GROUP = ("cluster", "job_class", "slo")


@dataclass(slots=True)
class Upkeep:
    """Rolls up, thins, takes out names and trims dead letters: by turns, each in a transaction."""

    engine: Engine
    retention: Retention
    _trimmed_seconds: float = 0.0
    _task: Thinning | Anonymising | None = None
    _positions: Counter[str] = field(default_factory=Counter)
    _rest_until: float = 0.0

    def take_turn(self, now_seconds: float) -> None:
        """Works for a moment, or for one step where that takes longer."""
        end_seconds = time.monotonic() + _TURN_SECONDS
        if now_seconds - self._trimmed_seconds > _HOUR_SECONDS:
            self._trimmed_seconds = now_seconds
            with self.engine.begin() as connection:
                letters.trim(connection)
                if self.retention.names_seconds is not None:
                    oldest = now_seconds - self.retention.names_seconds
                    connection.execute(delete(dead_letters).where(dead_letters.c.received < oldest))
        is_busy = True
        while is_busy and time.monotonic() < end_seconds:
            with self.engine.begin() as connection:
                is_busy = roll_up(connection, now_seconds)
                is_busy = self._work(connection, now_seconds) or is_busy

    def _work(self, connection: Connection, now_seconds: float) -> bool:
        if self._task is not None:
            if self._task.run_step(connection):
                column = next(name for name, kind in _TASKS if isinstance(self._task, kind))
                _note(connection, self._task.job, column)
                self._task = None
            return True
        ages = (self.retention.events_seconds, self.retention.names_seconds)
        for (column, kind), age_seconds in zip(_TASKS, ages, strict=True):
            if age_seconds is None or now_seconds < self._rest_until:
                continue
            job = self._find_next(connection, column, now_seconds - age_seconds)
            self._positions[column] = job or 0
            if job is not None:
                self._task = kind(job)
                return True
        if now_seconds >= self._rest_until:
            self._rest_until = now_seconds + _REST_SECONDS
        return False

    def _find_next(self, connection: Connection, column: str, before: float) -> int | None:
        done = job_upkeep.c[column]
        query = (
            select(jobs.c.number)
            .join_from(jobs, job_upkeep, jobs.c.number == job_upkeep.c.job, isouter=True)
            .where(jobs.c.status == "finished", jobs.c.number > self._positions[column])
            .where(jobs.c.updated < before, or_(done.is_(None), done < jobs.c.updated))
        )
        number: int | None = connection.execute(query.order_by(jobs.c.number).limit(1)).scalar()
        return number


def roll_up(connection: Connection, now_seconds: float) -> bool:
    """Moves the rows of one bucket; returns whether there was one to move.

    A row that comes late is moved by itself and added to its bucket.
    """
    for table, seconds, size, age_seconds in _STAGES:
        own = [table.c.seconds == seconds] if seconds else []
        oldest = connection.execute(select(func.min(table.c.time)).where(*own)).scalar()
        if oldest is None:
            continue
        begin = oldest // size * size
        if begin + size <= now_seconds - age_seconds:
            _move(connection, table, [*own, table.c.time >= begin, table.c.time < begin + size],
                  (size, begin))  # fmt: skip
            return True
    old = slo_rollups.c.time < now_seconds - _KEEP_SECONDS
    connection.execute(delete(slo_rollups).where(slo_rollups.c.seconds == _HOUR_SECONDS, old))
    return False


def _move(connection: Connection, table: Table, own: list[Any], key: tuple[int, float]) -> None:
    names = [table.c[name] for name in _GROUP]
    sums = (func.sum(table.c.good), func.sum(table.c.total))
    query = select(*map(literal, key), *names, *sums).where(*own).group_by(*names)
    moved = insert_into(connection.dialect, slo_rollups).from_select(slo_rollups.c.keys(), query)
    added = {name: slo_rollups.c[name] + moved.excluded[name] for name in ("good", "total")}
    keys = list(slo_rollups.primary_key)
    connection.execute(moved.on_conflict_do_update(index_elements=keys, set_=added))
    connection.execute(delete(table).where(*own))
