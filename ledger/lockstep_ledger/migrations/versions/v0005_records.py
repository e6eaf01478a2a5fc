"""Records follow from all events of their jobs; stores are shared, thinned, restored and billed."""

import json

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, String, Text, column, table, text

from lockstep_catalogue.ledger import COST

revision = "0005"
down_revision = "0004"

_NUMBER = BigInteger().with_variant(Integer, "sqlite")
_NAME = String(200)


def upgrade() -> None:
    """Adds what the writer keeps of a job; the next writer fills it in from the stored events."""
    op.add_column("jobs", Column("facts", Text, nullable=False, server_default=""))
    op.add_column("jobs", Column("run_begin", Double))
    op.add_column("jobs", Column("currency", _NAME, nullable=False, server_default=""))
    op.create_index("events_of_node", "events", ["job", "node", "time"])
    is_incident = text("kind = 'node_event'")
    op.create_index(
        "events_of_incidents", "events", ["job", "time"],
        sqlite_where=is_incident, postgresql_where=is_incident,
    )  # fmt: skip
    _create_parts_of_jobs()
    _create_upkeep()
    _create_bills()
    # Sums of before are over all currencies: they keep an empty one.
    counters = table("counters", *map(column, ("number", "name", "labels")))
    query = counters.select().where(counters.c.name == COST.name)
    for row in op.get_bind().execute(query).all():
        labels = json.dumps([*json.loads(row.labels), ""])
        op.execute(counters.update().where(counters.c.number == row.number).values(labels=labels))


def _create_parts_of_jobs() -> None:
    op.create_table(
        "spans",
        Column("job", _NUMBER, primary_key=True, autoincrement=False),
        Column("node", _NAME, primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("state", Text, nullable=False),
    )
    op.create_table(
        "marks",
        Column("job", _NUMBER, primary_key=True, autoincrement=False),
        Column("what", String(24), primary_key=True),
        Column("attempt", Integer, primary_key=True, autoincrement=False),
        Column("number", _NUMBER, primary_key=True, autoincrement=False),
        Column("time", Double, nullable=False),
    )
    op.create_table(
        "aliases",
        Column("cluster", _NAME, primary_key=True),
        Column("alias", String(450), primary_key=True),
        Column("job", _NUMBER, nullable=False, index=True),
    )
    op.create_table(
        "amendments",
        Column("number", _NUMBER, primary_key=True, autoincrement=True),
        Column("time", Double, nullable=False),
        Column("job", _NUMBER, nullable=False),
        Column("field", String(100), nullable=False),
        Column("before", Text, nullable=False),
        Column("after", Text, nullable=False),
        Column("why", Text, nullable=False),
        Column("event_id", String(100), nullable=False),
    )
    op.create_index("amendments_of_job", "amendments", ["job", "number"])
    op.create_index("amendments_by_time", "amendments", ["time"])


def _create_upkeep() -> None:
    op.create_table(
        "inbox",
        Column("number", _NUMBER, primary_key=True, autoincrement=True),
        Column("client", _NAME, nullable=False),
        Column("events", Text, nullable=False),
    )
    op.create_table(
        "slo_rollups",
        Column("seconds", Integer, primary_key=True, autoincrement=False),
        Column("time", Double, primary_key=True),
        Column("cluster", _NAME, primary_key=True),
        Column("job_class", _NAME, primary_key=True),
        Column("slo", String(40), primary_key=True),
        Column("good", Double, nullable=False),
        Column("total", Double, nullable=False),
    )
    op.create_table(
        "job_upkeep",
        Column("job", _NUMBER, primary_key=True, autoincrement=False),
        Column("thinned", Double),
        Column("anonymised", Double),
    )
    op.create_table(
        "counter_bases",
        Column("counter", _NUMBER, primary_key=True, autoincrement=False),
        Column("base", Double, nullable=False),
    )


def _create_bills() -> None:
    op.create_table(
        "closed_months",
        Column("month", String(7), primary_key=True),
        Column("zone", String(100), nullable=False),
        Column("rate_card", String(16), nullable=False),
        Column("closed", Double, nullable=False),
        Column("author", _NAME, nullable=False),
    )
    op.create_table(
        "statement_lines",
        Column("number", _NUMBER, primary_key=True, autoincrement=True),
        Column("month", String(7), nullable=False),
        Column("corrects", String(7), nullable=False),
        Column("job", BigInteger, nullable=False),
        Column("project", _NAME, nullable=False),
        Column("currency", _NAME, nullable=False),
        Column("amount", String(40), nullable=False),
        Column("body", Text, nullable=False),
    )
    op.create_index("statement_lines_by_month", "statement_lines", ["month"])
    op.create_index("statement_lines_by_correction", "statement_lines", ["corrects"])
