"""The tables of the store."""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData()
VERSION = 1
"""Of the tables below."""
ASIDE_TIME = 1e15
"""Stands in ``settle_at`` for a job that cannot be settled and waits for ever."""
# SQLite numbers only a column of the type INTEGER by itself, which has 64 bits there.
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_NAME = sa.String(200)


def _required(**types: Any) -> Iterator[sa.Column[Any]]:
    """Columns that are never NULL, by name."""
    return (sa.Column(name, kind, nullable=False) for name, kind in types.items())


def _optional(**types: Any) -> Iterator[sa.Column[Any]]:
    """Columns that may be NULL, by name."""
    return (sa.Column(name, kind) for name, kind in types.items())


def _key(**types: Any) -> Iterator[sa.Column[Any]]:
    """Columns of a primary key whose values the ledger gives."""
    columns = types.items()
    return (sa.Column(name, kind, primary_key=True, autoincrement=False) for name, kind in columns)


def _numbered() -> sa.Column[Any]:
    """A primary key that the database counts up."""
    return sa.Column("number", _NUMBER, primary_key=True, autoincrement=True)


events = sa.Table(
    "events",
    metadata,
    *_key(sequence=_NUMBER),
    *_required(id=sa.String(100), job=_NUMBER, kind=sa.String(64), node=_NAME, attempt=sa.Integer),
    *_required(time=sa.Double, received=sa.Double, body=sa.Text),
    sa.UniqueConstraint("id", name="events_id"),
    sa.Index("events_of_job", "job", "sequence"),
    sa.Index("events_of_node", "job", "node", "time"),
    sa.Index(
        "events_of_incidents",
        "job",
        "time",
        sqlite_where=sa.text("kind = 'node_event'"),
        postgresql_where=sa.text("kind = 'node_event'"),
    ),
)

jobs = sa.Table(
    "jobs",
    metadata,
    *_key(number=_NUMBER),
    *_required(cluster=_NAME, job_id=_NAME, project=_NAME, queue=_NAME, job_class=_NAME),
    *_required(user=_NAME, name=_NAME, status=sa.String(16)),
    *_optional(outcome=sa.String(16), failure_class=sa.String(16), cause=sa.String(64)),
    *_optional(cause_node=_NAME, submitted=sa.Double, started=sa.Double, ended=sa.Double),
    *_required(updated=sa.Double, gpu_seconds=sa.Double, costs=sa.JSON),
    *_optional(settle_at=sa.Double),
    *_required(counted=sa.Boolean, state=sa.Text),
    # Of 32 bits without a sign, as the kernel has them.
    *_optional(owner=sa.BigInteger),
    # The writer's own: ``state`` is the record for readers.
    *_required(facts=sa.Text),
    *_optional(run_begin=sa.Double),
    # Digest of the newest card by which the costs hold.
    *_required(rate_card=sa.String(16)),
    sa.UniqueConstraint("cluster", "job_id", name="jobs_id"),
    sa.Index("jobs_by_status", "status", "number"),
    sa.Index("jobs_by_outcome", "outcome", "number"),
    sa.Index("jobs_by_project", "project", "number"),
    sa.Index("jobs_by_user", "user", "number"),
    sa.Index("jobs_by_end", "ended"),
    sa.Index("jobs_to_settle", "settle_at"),
)

spans = sa.Table(
    "spans", metadata, *_key(job=_NUMBER, node=_NAME, number=sa.Integer), *_required(state=sa.Text)
)
"""From a start to an end of a node; of the scheduler where the node is empty."""

marks = sa.Table(
    "marks",
    metadata,
    *_key(job=_NUMBER, what=sa.String(24), attempt=sa.Integer, number=_NUMBER),
    *_required(time=sa.Double),
)
"""What counts once however many nodes report it, with the earliest time of a report."""

aliases = sa.Table(
    "aliases",
    metadata,
    *_key(cluster=_NAME, alias=sa.String(450)),
    sa.Column("job", _NUMBER, nullable=False, index=True),
)
"""Names of a job besides its id; ``id:`` begins an id that it had before it was joined."""

amendments = sa.Table(
    "amendments",
    metadata,
    _numbered(),
    *_required(time=sa.Double, job=_NUMBER, field=sa.String(100), before=sa.Text, after=sa.Text),
    *_required(why=sa.Text, event_id=sa.String(100)),
    sa.Index("amendments_of_job", "job", "number"),
    sa.Index("amendments_by_time", "time"),
)
"""What late events changed of a finished job, and what a counter could not take back."""

counters = sa.Table(
    "counters",
    metadata,
    *_key(number=_NUMBER),
    *_required(name=sa.String(100), labels=sa.Text, value=sa.Double, created=sa.Double),
    sa.UniqueConstraint("name", "labels", name="counters_series"),
)

slo_events = sa.Table(
    "slo_events",
    metadata,
    _numbered(),
    *_required(time=sa.Double, cluster=_NAME, job_class=_NAME, slo=sa.String(40), good=sa.Double),
    *_required(total=sa.Double),
    sa.Index("slo_events_by_time", "time", "cluster", "job_class", "slo", "good", "total"),
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    _numbered(),
    *_required(received=sa.Double, refusal=sa.String(16), reason=sa.Text),
    *_optional(event_id=_NAME, job_id=_NAME, node=_NAME),
    *_required(client=_NAME, body=sa.Text),
    sa.UniqueConstraint("event_id", "refusal", name="dead_letters_once"),
    sa.Index("dead_letters_by_refusal", "refusal", "number"),
)

agents = sa.Table("agents", metadata, *_key(token=sa.String(24)), *_required(node=_NAME))
"""The node of each agent's token that names none: the first that it spoke of."""

inbox = sa.Table("inbox", metadata, _numbered(), *_required(client=_NAME, events=sa.Text))
"""Deliveries that a ledger took without leading; the leader stores their events."""

slo_rollups = sa.Table(
    "slo_rollups",
    metadata,
    *_key(seconds=sa.Integer, time=sa.Double, cluster=_NAME, job_class=_NAME, slo=sa.String(40)),
    *_required(good=sa.Double, total=sa.Double),
)
"""Sums of older rows of ``slo_events``, a row a bucket of so many seconds that begins at a time."""

job_upkeep = sa.Table(
    "job_upkeep", metadata, *_key(job=_NUMBER), *_optional(thinned=sa.Double, anonymised=sa.Double)
)
"""Up to which ``updated`` of a job its events are thinned and its names are gone."""

counter_bases = sa.Table(
    "counter_bases", metadata, *_key(counter=_NUMBER), *_required(base=sa.Double)
)
"""What a counter held when its store was restored: it is served as what it has grown by since."""

store_version = sa.Table("store_version", metadata, *_key(version=sa.Integer))
"""One row, the ``VERSION`` of the ledger that created the tables."""
