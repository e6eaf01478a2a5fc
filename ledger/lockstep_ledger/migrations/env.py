"""Runs the steps on the connection that the ledger hands over; Alembic executes this file."""

from alembic import context

from lockstep_ledger.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite changes a table only by writing it anew.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
