"""Creates the tables of the first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_NAME = sa.String(200)


def upgrade() -> None:
    """Creates tables and indexes."""
    _create_events()
    _create_jobs()
    _create_counts()
    _create_dead_letters()


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("sequence", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("id", sa.String(100), nullable=False),
        sa.Column("job", _NUMBER, nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("node", _NAME, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("received", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("id", name="events_id"),
    )
    op.create_index("events_of_job", "events", ["job", "sequence"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", _NUMBER, autoincrement=False, nullable=False),
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
        sa.Column("culprit_node", _NAME),
        sa.Column("submitted", sa.Double),
        sa.Column("started", sa.Double),
        sa.Column("ended", sa.Double),
        sa.Column("updated", sa.Double, nullable=False),
        sa.Column("gpu_seconds", sa.Double, nullable=False),
        sa.Column("cost", sa.Double, nullable=False),
        sa.Column("settle_at", sa.Double),
        sa.Column("counted", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("cluster", "job_id", name="jobs_id"),
    )
    op.create_index("jobs_by_end", "jobs", ["ended"])
    op.create_index("jobs_by_outcome", "jobs", ["outcome", "number"])
    op.create_index("jobs_by_project", "jobs", ["project", "number"])
    op.create_index("jobs_by_status", "jobs", ["status", "number"])
    op.create_index("jobs_to_settle", "jobs", ["settle_at"])


def _create_counts() -> None:
    op.create_table(
        "counters",
        sa.Column("number", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("name", "labels", name="counters_series"),
    )
    op.create_table(
        "slo_events",
        sa.Column("number", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("cluster", _NAME, nullable=False),
        sa.Column("slo", sa.String(40), nullable=False),
        sa.Column("good", sa.Double, nullable=False),
        sa.Column("total", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    columns = ["time", "cluster", "slo", "good", "total"]
    op.create_index("slo_events_by_time", "slo_events", columns)


def _create_dead_letters() -> None:
    op.create_table(
        "dead_letters",
        sa.Column("number", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("received", sa.Double, nullable=False),
        sa.Column("refusal", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("event_id", _NAME),
        sa.Column("job_id", _NAME),
        sa.Column("node", _NAME),
        sa.Column("client", _NAME, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("event_id", "refusal", name="dead_letters_once"),
    )
    op.create_index("dead_letters_by_refusal", "dead_letters", ["refusal", "number"])
