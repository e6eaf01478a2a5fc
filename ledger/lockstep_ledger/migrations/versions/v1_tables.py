"""Creates the tables; nothing is released yet, so they are those of ``tables.py`` as it stands."""

from alembic import op

from lockstep_ledger.store.tables import metadata

revision = "1"
down_revision = None


def upgrade() -> None:
    """Creates tables and indexes."""
    metadata.create_all(op.get_bind())
