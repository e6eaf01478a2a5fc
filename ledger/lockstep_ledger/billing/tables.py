"""Tables of months that are closed, and of the lines and corrections that were billed with them."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text

from lockstep_ledger.store.tables import metadata

closed_months = Table(
    "closed_months",
    metadata,
    Column("month", String(7), primary_key=True),
    Column("zone", String(100), nullable=False),
    Column("rate_card", String(16), nullable=False),
    Column("closed", Double, nullable=False),
    Column("author", String(200), nullable=False),
)

# Never changed and never deleted; what is wrong in a closed month is a line more in an open one.
statement_lines = Table(
    "statement_lines",
    metadata,
    Column(
        "number",
        BigInteger().with_variant(Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    Column("month", String(7), nullable=False),
    Column("corrects", String(7), nullable=False),
    Column("job", BigInteger, nullable=False),
    Column("project", String(200), nullable=False),
    Column("currency", String(200), nullable=False),
    # As decimal text: no database of the two rounds it.
    Column("amount", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Index("statement_lines_by_month", "month"),
    Index("statement_lines_by_correction", "corrects"),
)
