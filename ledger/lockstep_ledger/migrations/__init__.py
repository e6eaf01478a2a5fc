"""The steps from each version of the store's tables to the next, run by Alembic at the start."""
