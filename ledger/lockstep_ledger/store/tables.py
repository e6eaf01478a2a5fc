"""The tables of the store; migrations/versions holds the steps that lead to them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()
ASIDE_TIME = 1e15
"""Stands in ``settle_at`` for a job that cannot be settled and waits for ever."""
# SQLite numbers only a column of the type INTEGER by itself, which has 64 bits there.
_NUMBER = BigInteger().with_variant(Integer, "sqlite")
_NAME = String(200)

events = Table(
    "events",
    metadata,
    Column("sequence", _NUMBER, primary_key=True, autoincrement=False),
    Column("id", String(100), nullable=False),
    Column("job", _NUMBER, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("node", _NAME, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("time", Double, nullable=False),
    Column("received", Double, nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("id", name="events_id"),
    Index("events_of_job", "job", "sequence"),
    Index("events_of_node", "job", "node", "time"),
    Index(
        "events_of_incidents",
        "job",
        "time",
        sqlite_where=text("kind = 'node_event'"),
        postgresql_where=text("kind = 'node_event'"),
    ),
)

jobs = Table(
    "jobs",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    Column("cluster", _NAME, nullable=False),
    Column("job_id", _NAME, nullable=False),
    Column("project", _NAME, nullable=False),
    Column("queue", _NAME, nullable=False),
    Column("job_class", _NAME, nullable=False),
    Column("user", _NAME, nullable=False),
    Column("name", _NAME, nullable=False),
    Column("status", String(16), nullable=False),
    Column("outcome", String(16)),
    Column("failure_class", String(16)),
    Column("cause", String(64)),
    Column("culprit_node", _NAME),
    Column("submitted", Double),
    Column("started", Double),
    Column("ended", Double),
    Column("updated", Double, nullable=False),
    Column("gpu_seconds", Double, nullable=False),
    Column("cost", Double, nullable=False),
    Column("settle_at", Double),
    Column("counted", Boolean, nullable=False),
    Column("state", Text, nullable=False),
    # Of 32 bits without a sign, as the kernel has them.
    Column("owner", BigInteger),
    # The writer's own: ``state`` is the record for readers.
    Column("facts", Text, nullable=False, server_default=""),
    Column("run_begin", Double),
    # Of the cost; a job that is priced in several has that of its newest price.
    Column("currency", _NAME, nullable=False, server_default=""),
    UniqueConstraint("cluster", "job_id", name="jobs_id"),
    Index("jobs_by_status", "status", "number"),
    Index("jobs_by_outcome", "outcome", "number"),
    Index("jobs_by_project", "project", "number"),
    Index("jobs_by_user", "user", "number"),
    Index("jobs_by_end", "ended"),
    Index("jobs_to_settle", "settle_at"),
)

spans = Table(
    "spans",
    metadata,
    Column("job", _NUMBER, primary_key=True, autoincrement=False),
    Column("node", _NAME, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
)
"""From a start to an end of a node; of the scheduler where the node is empty."""

marks = Table(
    "marks",
    metadata,
    Column("job", _NUMBER, primary_key=True, autoincrement=False),
    Column("what", String(24), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    Column("time", Double, nullable=False),
)
"""What counts once however many nodes report it, with the earliest time of a report."""

aliases = Table(
    "aliases",
    metadata,
    Column("cluster", _NAME, primary_key=True),
    Column("alias", String(450), primary_key=True),
    Column("job", _NUMBER, nullable=False, index=True),
)
"""Names of a job besides its id; ``id:`` begins an id that it had before it was joined."""

amendments = Table(
    "amendments",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("time", Double, nullable=False),
    Column("job", _NUMBER, nullable=False),
    Column("field", String(100), nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("event_id", String(100), nullable=False),
    Index("amendments_of_job", "job", "number"),
    Index("amendments_by_time", "time"),
)
"""What late events changed of a finished job, and what a counter could not take back."""

counters = Table(
    "counters",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    Column("name", String(100), nullable=False),
    Column("labels", Text, nullable=False),
    Column("value", Double, nullable=False),
    Column("created", Double, nullable=False),
    UniqueConstraint("name", "labels", name="counters_series"),
)

slo_events = Table(
    "slo_events",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("time", Double, nullable=False),
    Column("cluster", _NAME, nullable=False),
    Column("job_class", _NAME, nullable=False, server_default=""),
    Column("slo", String(40), nullable=False),
    Column("good", Double, nullable=False),
    Column("total", Double, nullable=False),
    Index("slo_events_by_time", "time", "cluster", "job_class", "slo", "good", "total"),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("received", Double, nullable=False),
    Column("refusal", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("event_id", _NAME),
    Column("job_id", _NAME),
    Column("node", _NAME),
    Column("client", _NAME, nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("event_id", "refusal", name="dead_letters_once"),
    Index("dead_letters_by_refusal", "refusal", "number"),
)

inbox = Table(
    "inbox",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("client", _NAME, nullable=False),
    Column("events", Text, nullable=False),
)
"""Deliveries that a ledger took without leading; the leader stores their events."""

slo_rollups = Table(
    "slo_rollups",
    metadata,
    Column("seconds", Integer, primary_key=True, autoincrement=False),
    Column("time", Double, primary_key=True),
    Column("cluster", _NAME, primary_key=True),
    Column("job_class", _NAME, primary_key=True),
    Column("slo", String(40), primary_key=True),
    Column("good", Double, nullable=False),
    Column("total", Double, nullable=False),
)
"""Sums of older rows of ``slo_events``, a row a bucket of so many seconds that begins at a time."""

job_upkeep = Table(
    "job_upkeep",
    metadata,
    Column("job", _NUMBER, primary_key=True, autoincrement=False),
    Column("thinned", Double),
    Column("anonymised", Double),
)
"""Up to which ``updated`` of a job its events are thinned and its names are gone."""

counter_bases = Table(
    "counter_bases",
    metadata,
    Column("counter", _NUMBER, primary_key=True, autoincrement=False),
    Column("base", Double, nullable=False),
)
"""What a counter held when its store was restored: it is served as what it has grown by since."""

closed_months = Table(
    "closed_months",
    metadata,
    Column("month", String(7), primary_key=True),
    Column("zone", String(100), nullable=False),
    Column("rate_card", String(16), nullable=False),
    Column("closed", Double, nullable=False),
    Column("author", _NAME, nullable=False),
)

# Never changed and never deleted; what is wrong in a closed month is a line more in an open one.
statement_lines = Table(
    "statement_lines",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("month", String(7), nullable=False),
    Column("corrects", String(7), nullable=False),
    Column("job", BigInteger, nullable=False),
    Column("project", _NAME, nullable=False),
    Column("currency", _NAME, nullable=False),
    # As decimal text: no database of the two rounds it.
    Column("amount", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Index("statement_lines_by_month", "month"),
    Index("statement_lines_by_correction", "corrects"),
)
