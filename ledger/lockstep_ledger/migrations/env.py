"""Runs the steps on the connection that the ledger hands over; Alembic executes this file."""

from alembic import context

from lockstep_ledger.billing.tables import closed_months
from lockstep_ledger.store.tables import metadata
from lockstep_ledger.store.upkeep_tables import inbox

# Every table of the store is declared by now.
assert inbox.metadata is metadata is closed_months.metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite changes a table only by writing it anew.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
