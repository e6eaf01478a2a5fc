"""A restored store serves its counters from 0 on: the base is what they held then."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Creates the table."""
    number = BigInteger().with_variant(Integer, "sqlite")
    op.create_table(
        "counter_bases",
        Column("counter", number, primary_key=True, autoincrement=False),
        Column("base", Double, nullable=False),
    )
