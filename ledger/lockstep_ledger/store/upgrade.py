"""Brings a store of before migration 0005 up to date: all jobs are derived from their events."""

import logging
from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert, select

from lockstep_catalogue import Kind
from lockstep_catalogue.ledger import AMENDED, COUNTED, GROUP
from lockstep_ledger.merge.effects import Effects
from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.merge.precedence import SCHEDULER
from lockstep_ledger.merge.settlement import SettleTimeouts
from lockstep_ledger.store import job_states
from lockstep_ledger.store.booking import book
from lockstep_ledger.store.counters import Counters, Series
from lockstep_ledger.store.job_states import JobState
from lockstep_ledger.store.job_work import JobWork
from lockstep_ledger.store.tables import events, jobs, slo_events, slo_rollups

_log = logging.getLogger(__name__)
_COUNTERS = {metric.name for metric in COUNTED if metric.kind is Kind.COUNTER} - {AMENDED.name}
_HISTOGRAMS = [metric.name for metric in COUNTED if metric.kind is Kind.HISTOGRAM]
_FLUSH_ROWS = 10_000
_FIRST_WORDS = select(events.c.time, events.c.attempt, events.c.id).where(
    events.c.node == SCHEDULER, events.c.kind.not_like("ledger_%")
)


def derive_all(
    connection: Connection, held: Counters, timeouts: SettleTimeouts, now_seconds: float
) -> None:
    """Derives every job that has no facts yet; counters grow or are amended to what is exact."""
    query = select(jobs.c.cluster, jobs.c.job_id, jobs.c.number, jobs.c.owner)
    rows = connection.execute(query.where(jobs.c.facts == "").order_by(jobs.c.number)).all()
    if not rows:
        return
    _log.info("upgrade=begins jobs=%d", len(rows))
    for table in (slo_events, slo_rollups):
        connection.execute(delete(table))
    exact: dict[Series, float] = defaultdict(float)
    effects = Effects()
    for row in rows:
        first = connection.execute(_FIRST_WORDS.where(events.c.job == row.number)).first()
        order = None if first is None else (first.time, first.attempt, 0, first.id)
        facts = JobFacts(row.cluster, row.job_id, row.number, {row.job_id: (0, order)}, [], {},
                         row.owner)  # fmt: skip
        facts.booked.observed = list(_HISTOGRAMS)
        state = JobState(facts, begins_anew=True)
        work = JobWork(state, connection, effects, timeouts)
        state.record = work.run()
        book(state.facts, None, state.record, work.checkpoints, effects)
        job_states.save(connection, [state], ())
        for name, labels, amount in effects.increments:
            exact[name, held.counted_labels(labels)] += amount
        effects.increments.clear()
        if len(effects.slo_rows) > _FLUSH_ROWS:
            _flush(connection, effects, held)
            effects = Effects(groups=effects.groups)
    _flush(connection, effects, held)
    _reconcile(exact, effects, held)
    held.apply(effects, now_seconds)
    _log.info("upgrade=done jobs=%d", len(rows))


def _flush(connection: Connection, effects: Effects, held: Counters) -> None:
    if rows := held.slo_values(effects):
        connection.execute(insert(slo_events), rows)


def _reconcile(exact: Mapping[Series, float], effects: Effects, held: Counters) -> None:
    """Adds what counters lack, and notes what they hold too much."""
    series = {key: row.value for key, row in held.snapshot().items() if key[0] in _COUNTERS}
    for name, labels in series.keys() | exact.keys():
        difference = exact.get((name, labels), 0.0) - series.get((name, labels), 0.0)
        if difference > 0:
            effects.add(name, labels, difference)
        elif difference < 0:
            effects.amend(name, labels[: len(GROUP)], -difference)
