"""Jobs have an owner: who sent the first event of them from a node; those from before have none."""

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Adds the column."""
    op.add_column("jobs", Column("owner", BigInteger))
