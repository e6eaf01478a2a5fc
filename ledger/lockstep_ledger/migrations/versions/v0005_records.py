"""Records follow from all events of their jobs; stores are shared, thinned, restored and billed."""

import json

import sqlalchemy as sa
from alembic import op

from lockstep_catalogue.ledger import COST

revision = "0005"
down_revision = "0004"

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_NAME = sa.String(200)


def upgrade() -> None:
    """Adds what the writer keeps of a job; the next writer fills it in from the stored events."""
    op.add_column("jobs", sa.Column("facts", sa.Text, nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("run_begin", sa.Double))
    op.add_column("jobs", sa.Column("currency", _NAME, nullable=False, server_default=""))
    op.create_index("events_of_node", "events", ["job", "node", "time"])
    is_incident = sa.text("kind = 'node_event'")
    op.create_index(
        "events_of_incidents", "events", ["job", "time"],
        sqlite_where=is_incident, postgresql_where=is_incident,
    )  # fmt: skip
    _create_parts_of_jobs()
    _create_upkeep()
    _create_bills()
    # Sums of before are over all currencies: they keep an empty one.
    counters = sa.table("counters", *map(sa.column, ("number", "name", "labels")))
    query = counters.select().where(counters.c.name == COST.name)
    for row in op.get_bind().execute(query).all():
        labels = json.dumps([*json.loads(row.labels), ""])
        op.execute(counters.update().where(counters.c.number == row.number).values(labels=labels))


def _create_parts_of_jobs() -> None:
    op.create_table(
        "spans",
        sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("node", _NAME, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text, nullable=False),
    )
    op.create_table(
        "marks",
        sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("what", sa.String(24), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Double, nullable=False),
    )
    op.create_table(
        "aliases",
        sa.Column("cluster", _NAME, primary_key=True),
        sa.Column("alias", sa.String(450), primary_key=True),
        sa.Column("job", _NUMBER, nullable=False, index=True),
    )
    op.create_table(
        "amendments",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("job", _NUMBER, nullable=False),
        sa.Column("field", sa.String(100), nullable=False),
        sa.Column("before", sa.Text, nullable=False),
        sa.Column("after", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("event_id", sa.String(100), nullable=False),
    )
    op.create_index("amendments_of_job", "amendments", ["job", "number"])
    op.create_index("amendments_by_time", "amendments", ["time"])


def _create_upkeep() -> None:
    op.create_table(
        "inbox",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("client", _NAME, nullable=False),
        sa.Column("events", sa.Text, nullable=False),
    )
    op.create_table(
        "slo_rollups",
        sa.Column("seconds", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Double, primary_key=True),
        sa.Column("cluster", _NAME, primary_key=True),
        sa.Column("job_class", _NAME, primary_key=True),
        sa.Column("slo", sa.String(40), primary_key=True),
        sa.Column("good", sa.Double, nullable=False),
        sa.Column("total", sa.Double, nullable=False),
    )
    op.create_table(
        "job_upkeep",
        sa.Column("job", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("thinned", sa.Double),
        sa.Column("anonymised", sa.Double),
    )
    op.create_table(
        "counter_bases",
        sa.Column("counter", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("base", sa.Double, nullable=False),
    )


def _create_bills() -> None:
    op.create_table(
        "closed_months",
        sa.Column("month", sa.String(7), primary_key=True),
        sa.Column("zone", sa.String(100), nullable=False),
        sa.Column("rate_card", sa.String(16), nullable=False),
        sa.Column("closed", sa.Double, nullable=False),
        sa.Column("author", _NAME, nullable=False),
    )
    op.create_table(
        "statement_lines",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("corrects", sa.String(7), nullable=False),
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("project", _NAME, nullable=False),
        sa.Column("currency", _NAME, nullable=False),
        sa.Column("amount", sa.String(40), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("statement_lines_by_month", "statement_lines", ["month"])
    op.create_index("statement_lines_by_correction", "statement_lines", ["corrects"])
