"""Creates the tables of the first version."""

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
)

revision = "0001"
down_revision = None

_NUMBER = BigInteger().with_variant(Integer, "sqlite")
_NAME = String(200)


def upgrade() -> None:
    """Creates tables and indexes."""
    _create_events()
    _create_jobs()
    _create_counts()
    _create_dead_letters()


def _create_events() -> None:
    op.create_table(
        "events",
        Column("sequence", _NUMBER, autoincrement=False, nullable=False),
        Column("id", String(100), nullable=False),
        Column("job", _NUMBER, nullable=False),
        Column("kind", String(64), nullable=False),
        Column("node", _NAME, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("time", Double, nullable=False),
        Column("received", Double, nullable=False),
        Column("body", Text, nullable=False),
        PrimaryKeyConstraint("sequence"),
        UniqueConstraint("id", name="events_id"),
    )
    op.create_index("events_of_job", "events", ["job", "sequence"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        Column("number", _NUMBER, autoincrement=False, nullable=False),
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
        PrimaryKeyConstraint("number"),
        UniqueConstraint("cluster", "job_id", name="jobs_id"),
    )
    op.create_index("jobs_by_end", "jobs", ["ended"])
    op.create_index("jobs_by_outcome", "jobs", ["outcome", "number"])
    op.create_index("jobs_by_project", "jobs", ["project", "number"])
    op.create_index("jobs_by_status", "jobs", ["status", "number"])
    op.create_index("jobs_to_settle", "jobs", ["settle_at"])


def _create_counts() -> None:
    op.create_table(
        "counters",
        Column("number", _NUMBER, autoincrement=False, nullable=False),
        Column("name", String(100), nullable=False),
        Column("labels", Text, nullable=False),
        Column("value", Double, nullable=False),
        Column("created", Double, nullable=False),
        PrimaryKeyConstraint("number"),
        UniqueConstraint("name", "labels", name="counters_series"),
    )
    op.create_table(
        "slo_events",
        Column("number", _NUMBER, autoincrement=True, nullable=False),
        Column("time", Double, nullable=False),
        Column("cluster", _NAME, nullable=False),
        Column("slo", String(40), nullable=False),
        Column("good", Double, nullable=False),
        Column("total", Double, nullable=False),
        PrimaryKeyConstraint("number"),
    )
    columns = ["time", "cluster", "slo", "good", "total"]
    op.create_index("slo_events_by_time", "slo_events", columns)


def _create_dead_letters() -> None:
    op.create_table(
        "dead_letters",
        Column("number", _NUMBER, autoincrement=True, nullable=False),
        Column("received", Double, nullable=False),
        Column("refusal", String(16), nullable=False),
        Column("reason", Text, nullable=False),
        Column("event_id", _NAME),
        Column("job_id", _NAME),
        Column("node", _NAME),
        Column("client", _NAME, nullable=False),
        Column("body", Text, nullable=False),
        PrimaryKeyConstraint("number"),
        UniqueConstraint("event_id", "refusal", name="dead_letters_once"),
    )
    op.create_index("dead_letters_by_refusal", "dead_letters", ["refusal", "number"])
