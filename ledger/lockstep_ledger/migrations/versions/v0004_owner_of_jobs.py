"""Jobs have an owner: who sent the first event of them from a node; those from before have none."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Adds the column."""
    op.add_column("jobs", sa.Column("owner", sa.BigInteger))
