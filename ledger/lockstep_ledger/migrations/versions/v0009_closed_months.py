"""Creates the tables of closed months; jobs and counters say the currency of their cost."""

import json

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Integer,
    String,
    Text,
    column,
    select,
    table,
    update,
)

from lockstep_catalogue.ledger import COST

revision = "0009"
down_revision = "0008"

_NUMBER = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    """Creates tables, indexes and the column, and fills in what stored records tell."""
    _create()
    connection = op.get_bind()
    jobs = table("jobs", *map(column, ("number", "cost", "currency", "state")))
    for number, state in connection.execute(
        select(jobs.c.number, jobs.c.state).where(jobs.c.cost != 0)
    ).all():
        currency = json.loads(state).get("currency") or ""
        change = update(jobs).where(jobs.c.number == number)
        connection.execute(change.values(currency=currency))
    # Sums of before are over all currencies: they keep an empty one.
    counters = table("counters", *map(column, ("number", "name", "labels")))
    for number, labels in connection.execute(
        select(counters.c.number, counters.c.labels).where(counters.c.name == COST.name)
    ).all():
        change = update(counters).where(counters.c.number == number)
        connection.execute(change.values(labels=json.dumps([*json.loads(labels), ""])))


def _create() -> None:
    op.create_table(
        "closed_months",
        Column("month", String(7), primary_key=True),
        Column("zone", String(100), nullable=False),
        Column("rate_card", String(16), nullable=False),
        Column("closed", Double, nullable=False),
        Column("author", String(200), nullable=False),
    )
    op.create_table(
        "statement_lines",
        Column("number", _NUMBER, primary_key=True, autoincrement=True),
        Column("month", String(7), nullable=False),
        Column("corrects", String(7), nullable=False),
        Column("job", BigInteger, nullable=False),
        Column("project", String(200), nullable=False),
        Column("currency", String(200), nullable=False),
        Column("amount", String(40), nullable=False),
        Column("body", Text, nullable=False),
    )
    op.create_index("statement_lines_by_month", "statement_lines", ["month"])
    op.create_index("statement_lines_by_correction", "statement_lines", ["corrects"])
    op.add_column("jobs", Column("currency", String(200), nullable=False, server_default=""))
