"""Tables beside those of jobs and events: what several ledgers share, and what is rolled up."""

from sqlalchemy import BigInteger, Column, Double, Integer, String, Table, Text

from lockstep_ledger.store.tables import metadata

# SQLite numbers only a column of the type INTEGER by itself, which has 64 bits there.
_NUMBER = BigInteger().with_variant(Integer, "sqlite")
_NAME = String(200)

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
