"""Lists the jobs of a user without reading those of all others."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Creates the index."""
    op.create_index("jobs_by_user", "jobs", ["user", "number"])
