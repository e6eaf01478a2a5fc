"""Counts of objectives name the class of the job; those from before have none."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_INDEX = "slo_events_by_time"


def upgrade() -> None:
    """Adds the column, and makes the index hold it: windows are counted from the index alone."""
    job_class = sa.Column("job_class", sa.String(200), nullable=False, server_default="")
    op.add_column("slo_events", job_class)
    op.drop_index(_INDEX, "slo_events")
    op.create_index(_INDEX, "slo_events", ["time", "cluster", "job_class", "slo", "good", "total"])
