"""A store held against the model: what it has of jobs, counters and windows, and its events."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Engine, select

from lockstep_catalogue.ledger import AMENDED, COUNTED, SLO_WINDOWS
from lockstep_catalogue.metric import Kind
from lockstep_ledger.store.tables import counters, events, jobs, slo_events, slo_rollups

from .arrivals import Arrival
from .job_history import Settings, Settlement
from .ledger_model import Expected, expect
from .store_ledger import GROUP

_HOUR_SECONDS = 3600
_OTHER = ("other",)
_FAMILIES = frozenset(m.name for m in COUNTED if m.kind is Kind.COUNTER) - {AMENDED.name}
# What the ledger no longer waited for stands among its events.
_SETTINGS = Settings(
    node_wait_seconds=math.inf, requeue_wait_seconds=math.inf, silent_wait_seconds=math.inf
)
Sums = dict[tuple[Any, ...], float]


def differences(engine: Engine, now_seconds: float | None = None) -> list[str]:
    """Where jobs, counters and windows, to now or to the newest row, differ from the events."""
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        connection.begin()
        expected = _expect(connection)
        pairs = (
            _jobs(connection, expected),
            _counters(connection, expected),
            _windows(connection, expected, now_seconds),
        )
    return [
        f"{key}: expected {model.get(key)}, stored {stored.get(key)}"
        for model, stored in pairs
        for key in sorted(model.keys() | stored.keys(), key=str)
        if not _is_equal(model.get(key, 0.0), stored.get(key, 0.0))
    ]


def _expect(connection: Connection) -> Expected:
    """What the model says of the stored events, whose times are corrected already."""
    columns = (jobs.c.cluster, jobs.c.job_id, *events.c)
    query = select(*columns).join(jobs, jobs.c.number == events.c.job).order_by(events.c.sequence)
    arrivals, settlements = [], []
    for row in connection.execute(query):
        fields = json.loads(row.body)["fields"]
        if row.kind == "ledger_settled":
            begin = fields.get("run_begin")
            if begin is not None:
                settled = Settlement(job_id=row.job_id, run_begin=begin, time=row.time)
                settlements.append(settled)
            continue
        event = {**row._asdict(), "fields": {**fields, "aliases": []}}  # they are joined
        arrivals.append(Arrival(event=event, received=row.received))
    now = max((arrival.received for arrival in arrivals), default=0.0)
    return expect(arrivals, _SETTINGS, now, settlements)


def _jobs(connection: Connection, expected: Expected) -> tuple[dict[Any, Any], dict[Any, Any]]:
    model = {
        (*key, name): value
        for key, record in expected.records.items()
        for name, value in (
            ("outcome", record["outcome"]),
            ("gpu_seconds", record["gpu_seconds"]),
            ("cost", sum(record["cost"].values())),
        )
    }
    stored = {
        (row.cluster, row.job_id, name): value
        for row in connection.execute(select(jobs))
        for name, value in (
            ("outcome", row.outcome),
            ("gpu_seconds", row.gpu_seconds),
            ("cost", sum(row.costs.values())),
        )
    }
    return model, stored


def _counters(connection: Connection, expected: Expected) -> tuple[Sums, Sums]:
    """By family and group: what fell from one label to another is in no single series."""
    stored: Sums = defaultdict(float)
    groups = set()
    for row in connection.execute(select(counters)):
        labels = json.loads(row.labels)
        group = tuple(labels[: len(GROUP)])
        groups.add(group)
        group = _OTHER if _OTHER[0] in group else group
        if row.name in _FAMILIES:
            stored[row.name, *group] += row.value
        elif row.name == AMENDED.name:
            stored[labels[-1], *group] -= row.value
    model: Sums = defaultdict(float)
    for (family, pairs), value in expected.counters.items():
        labels = dict(pairs)
        group = tuple(labels[name] for name in GROUP)
        name = f"lockstep_ledger_{family}_total"
        if name in _FAMILIES:
            model[name, *(group if group in groups else _OTHER)] += value
    return model, stored


def _windows(
    connection: Connection, expected: Expected, now_seconds: float | None
) -> tuple[Sums, Sums]:
    """By whole hours, within the longest window: older events may be thinned."""
    stored = [
        (row.job_class, row.slo, row.time, row.good, row.total)
        for table in (slo_events, slo_rollups)
        for row in connection.execute(select(table))
    ]
    model = [(row.job_class, row.slo, row.time, row.good, row.total) for row in expected.rows]
    if now_seconds is None:
        now_seconds = max((row[2] for row in (*stored, *model)), default=0.0)
    oldest = now_seconds - max(SLO_WINDOWS.values()) + _HOUR_SECONDS
    return dict(_by_hours(model, oldest)), dict(_by_hours(stored, oldest))


def _by_hours(rows: list[tuple[str, str, float, float, float]], oldest: float) -> Iterator[Any]:
    sums: Sums = defaultdict(float)
    for job_class, slo, time, good, total in rows:
        hour = int(time // _HOUR_SECONDS)
        if hour * _HOUR_SECONDS >= oldest:
            sums[job_class, slo, hour, "good"] += good
            sums[job_class, slo, hour, "total"] += total
    yield from sums.items()


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-3)
    return bool(left == right)
