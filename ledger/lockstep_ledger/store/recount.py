"""Counts everything anew from the stored events, to hold the counters against."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Engine, select

from lockstep_catalogue.ledger import GROUP
from lockstep_ledger.merge.apply import apply_event
from lockstep_ledger.merge.effects import Effects
from lockstep_ledger.merge.event import LedgerEvent
from lockstep_ledger.merge.job import Job
from lockstep_ledger.merge.settlement import SettleTimeouts
from lockstep_ledger.store.counters import Counters, Series
from lockstep_ledger.store.tables import counters, events, jobs

_FETCH = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Recount:
    """What the events add up to.

    Attributes:
        counters: value of each series that is not 0.
        jobs: record of each job by number.
    """

    counters: dict[Series, float]
    jobs: dict[int, Job]


def recount(engine: Engine) -> Recount:
    """Applies all stored events again, in the order of their storing."""
    # A name that is not among the saved groups was one too many: it is counted as other.
    with engine.connect() as connection:
        labels = connection.execute(select(counters.c.labels).distinct()).scalars()
        groups = frozenset(tuple(json.loads(text))[: len(GROUP)] for text in labels)
    again = Counters(groups=groups)
    records: dict[int, Job] = {}
    timeouts = SettleTimeouts()
    for event, number in stored_events(engine):
        job = records.get(number)
        if job is None:
            job = records[number] = Job(cluster=event.cluster, job_id=event.job_id, number=number)
        effects = Effects()
        apply_event(job, event, effects, timeouts)
        again.apply(effects, 0.0)
    again.commit()
    values = {series: row.value for series, row in again.snapshot().items() if row.value}
    return Recount(counters=values, jobs=records)


def stored_events(engine: Engine) -> Iterator[tuple[LedgerEvent, int]]:
    """Every event with the number of its job, in the order of storing."""
    query = (
        select(events, jobs.c.cluster, jobs.c.job_id)
        .join_from(events, jobs, events.c.job == jobs.c.number)
        .order_by(events.c.sequence)
    )
    with engine.connect().execution_options(yield_per=_FETCH) as connection:
        for row in connection.execute(query):
            body = json.loads(row.body)
            fields = body.pop("fields")
            event = LedgerEvent(
                id=row.id,
                kind=row.kind,
                cluster=row.cluster,
                job_id=row.job_id,
                node=row.node,
                attempt=row.attempt,
                time_seconds=row.time,
                received_seconds=row.received,
                fields=fields,
                extra=body,
            )
            yield event, row.job


def differences(engine: Engine) -> list[str]:
    """Where the counters or the jobs' outcomes differ from a recount; empty where they agree."""
    again = recount(engine)
    with engine.connect() as connection:
        saved = {
            (row.name, tuple(json.loads(row.labels))): row.value
            for row in connection.execute(select(counters))
            if row.value
        }
        rows = connection.execute(select(jobs.c.number, jobs.c.job_id, jobs.c.outcome)).all()
    lines = [
        f"{name}{list(labels)} is {saved.get((name, labels), 0.0)!r}, recounted"
        f" {again.counters.get((name, labels), 0.0)!r}"
        for name, labels in sorted(saved.keys() | again.counters.keys())
        if saved.get((name, labels), 0.0) != again.counters.get((name, labels), 0.0)
    ]
    for row in rows:
        job = again.jobs.get(row.number)
        outcome = None if job is None else job.outcome
        if outcome != row.outcome:
            lines.append(f"job {row.job_id} is {row.outcome}, recounted {outcome}")
    return lines
