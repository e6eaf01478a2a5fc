"""Counts of objectives older than an hour are sums, and each job says how far it is thinned."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, String

revision = "0007"
down_revision = "0006"

_NAME = String(200)
_MOVE = """
INSERT INTO slo_rollups (seconds, time, cluster, job_class, slo, good, total)
SELECT 3600, {bucket}, cluster, job_class, slo, sum(good), sum(total) FROM slo_events
WHERE time < {oldest} GROUP BY {bucket}, cluster, job_class, slo
"""
_FORGET = "DELETE FROM slo_events WHERE time < {oldest}"


def upgrade() -> None:
    """Creates the tables and fills them at once: in small steps it would take hours."""
    number = BigInteger().with_variant(Integer, "sqlite")
    op.create_table(
        "slo_rollups",
        Column("seconds", Integer, primary_key=True, autoincrement=False),
        Column("time", Double, primary_key=True),
        Column("cluster", _NAME, primary_key=True),
        Column("job_class", _NAME, primary_key=True),
        Column("slo", String(40), primary_key=True),
        Column("good", Double, nullable=False),
        Column("total", Double, nullable=False),
    )
    op.create_table(
        "job_upkeep",
        Column("job", number, primary_key=True, autoincrement=False),
        Column("thinned", Double),
        Column("anonymised", Double),
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    bucket = "CAST(time / 3600 AS INTEGER) * 3600" if is_sqlite else "floor(time / 3600) * 3600"
    # A day before the newest, in whole hours: what is younger is rolled up as it ages.
    newest = "(SELECT coalesce(max(time), 0) - 90000 FROM slo_events)"
    oldest = bucket.replace("time /", f"{newest} /")
    op.execute(_MOVE.format(bucket=bucket, oldest=oldest))
    op.execute(_FORGET.format(oldest=oldest))
