"""Records follow from spans and marks of their jobs; the upgrade derives them from the events."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, String, Text, text

revision = "0005"
down_revision = "0004"

_NUMBER = BigInteger().with_variant(Integer, "sqlite")
_NAME = String(200)


def upgrade() -> None:
    """Adds what the writer keeps of a job; the next writer fills it in from the stored events."""
    op.add_column("jobs", Column("facts", Text, nullable=False, server_default=""))
    op.add_column("jobs", Column("run_begin", Double))
    op.create_index("events_of_node", "events", ["job", "node", "time"])
    is_incident = text("kind = 'node_event'")
    op.create_index(
        "events_of_incidents", "events", ["job", "time"],
        sqlite_where=is_incident, postgresql_where=is_incident,
    )  # fmt: skip
    _create_parts_of_jobs()
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
