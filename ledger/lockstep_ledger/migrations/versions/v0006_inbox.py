"""Ledgers that do not lead leave deliveries for the leader."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, String, Text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Creates the table."""
    number = BigInteger().with_variant(Integer, "sqlite")
    op.create_table(
        "inbox",
        Column("number", number, primary_key=True, autoincrement=True),
        Column("client", String(200), nullable=False),
        Column("events", Text, nullable=False),
    )
