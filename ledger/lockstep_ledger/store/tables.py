"""The tables of the store."""

import sqlalchemy as sa

metadata = sa.MetaData()
ASIDE_TIME = 1e15
"""Stands in ``settle_at`` for a job that cannot be settled and waits for ever."""
# SQLite numbers only a column of the type INTEGER by itself, which has 64 bits there.
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_NAME = sa.String(200)

events = sa.Table(
    "events",
    metadata,
    sa.Column("sequence", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("id", sa.String(100), nullable=False),
    sa.Column("job", _NUMBER, nullable=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("node", _NAME, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("received", sa.Double, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
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
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("cluster", _NAME, nullable=False),
    sa.Column("job_id", _NAME, nullable=False),
    sa.Column("project", _NAME, nullable=False),
    sa.Column("queue", _NAME, nullable=False),
    sa.Column("job_class", _NAME, nullable=False),
    sa.Column("user", _NAME, nullable=False),
    sa.Column("name", _NAME, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("outcome", sa.String(16)),
    sa.Column("failure_class", sa.String(16)),
    sa.Column("cause", sa.String(64)),
    sa.Column("cause_node", _NAME),
    sa.Column("submitted", sa.Double),
    sa.Column("started", sa.Double),
    sa.Column("ended", sa.Double),
    sa.Column("updated", sa.Double, nullable=False),
    sa.Column("gpu_seconds", sa.Double, nullable=False),
    sa.Column("costs", sa.JSON, nullable=False),
    sa.Column("settle_at", sa.Double),
    sa.Column("counted", sa.Boolean, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    # Of 32 bits without a sign, as the kernel has them.
    sa.Column("owner", sa.BigInteger),
    # The writer's own: ``state`` is the record for readers.
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("run_begin", sa.Double),
    # Digest of the newest card by which the costs hold.
    sa.Column("rate_card", sa.String(16), nullable=False),
    sa.UniqueConstraint("cluster", "job_id", name="jobs_id"),
    sa.Index("jobs_by_status", "status", "number"),
    sa.Index("jobs_by_outcome", "outcome", "number"),
    sa.Index("jobs_by_project", "project", "number"),
    sa.Index("jobs_by_user", "user", "number"),
    sa.Index("jobs_by_end", "ended"),
    sa.Index("jobs_to_settle", "settle_at"),
)

spans = sa.Table(
    "spans",
    metadata,
    sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("node", _NAME, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
)
"""From a start to an end of a node; of the scheduler where the node is empty."""

marks = sa.Table(
    "marks",
    metadata,
    sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("what", sa.String(24), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Double, nullable=False),
)
"""What counts once however many nodes report it, with the earliest time of a report."""

aliases = sa.Table(
    "aliases",
    metadata,
    sa.Column("cluster", _NAME, primary_key=True),
    sa.Column("alias", sa.String(450), primary_key=True),
    sa.Column("job", _NUMBER, nullable=False, index=True),
)
"""Names of a job besides its id; ``id:`` begins an id that it had before it was joined."""

amendments = sa.Table(
    "amendments",
    metadata,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("job", _NUMBER, nullable=False),
    sa.Column("field", sa.String(100), nullable=False),
    sa.Column("before", sa.Text, nullable=False),
    sa.Column("after", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("event_id", sa.String(100), nullable=False),
    sa.Index("amendments_of_job", "job", "number"),
    sa.Index("amendments_by_time", "time"),
)
"""What late events changed of a finished job, and what a counter could not take back."""

counters = sa.Table(
    "counters",
    metadata,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("labels", sa.Text, nullable=False),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.UniqueConstraint("name", "labels", name="counters_series"),
)

slo_events = sa.Table(
    "slo_events",
    metadata,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("cluster", _NAME, nullable=False),
    sa.Column("job_class", _NAME, nullable=False),
    sa.Column("slo", sa.String(40), nullable=False),
    sa.Column("good", sa.Double, nullable=False),
    sa.Column("total", sa.Double, nullable=False),
    sa.Index("slo_events_by_time", "time", "cluster", "job_class", "slo", "good", "total"),
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("received", sa.Double, nullable=False),
    sa.Column("refusal", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("event_id", _NAME),
    sa.Column("job_id", _NAME),
    sa.Column("node", _NAME),
    sa.Column("client", _NAME, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.UniqueConstraint("event_id", "refusal", name="dead_letters_once"),
    sa.Index("dead_letters_by_refusal", "refusal", "number"),
)

inbox = sa.Table(
    "inbox",
    metadata,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("client", _NAME, nullable=False),
    sa.Column("events", sa.Text, nullable=False),
)
"""Deliveries that a ledger took without leading; the leader stores their events."""

slo_rollups = sa.Table(
    "slo_rollups",
    metadata,
    sa.Column("seconds", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Double, primary_key=True),
    sa.Column("cluster", _NAME, primary_key=True),
    sa.Column("job_class", _NAME, primary_key=True),
    sa.Column("slo", sa.String(40), primary_key=True),
    sa.Column("good", sa.Double, nullable=False),
    sa.Column("total", sa.Double, nullable=False),
)
"""Sums of older rows of ``slo_events``, a row a bucket of so many seconds that begins at a time."""

job_upkeep = sa.Table(
    "job_upkeep",
    metadata,
    sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("thinned", sa.Double),
    sa.Column("anonymised", sa.Double),
)
"""Up to which ``updated`` of a job its events are thinned and its names are gone."""

counter_bases = sa.Table(
    "counter_bases",
    metadata,
    sa.Column("counter", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("base", sa.Double, nullable=False),
)
"""What a counter held when its store was restored: it is served as what it has grown by since."""
