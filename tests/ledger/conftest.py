"""Stores of both kinds, and a ledger in this process or in one of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from lockstep_ledger.store.database import open_store

from .postgres_server import PostgresServer, is_runnable, postgres_server


@pytest.fixture(name="own_postgres")
def _own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL that a test may kill."""
    if not is_runnable():
        pytest.skip("no PostgreSQL here")
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session", name="postgres")
def _postgres() -> Iterator[str]:
    """Address of a PostgreSQL of its own, reached by a socket in its own folder."""
    if not is_runnable():
        pytest.skip("no PostgreSQL here")
    with postgres_server() as server:
        yield server.dsn


@pytest.fixture(name="postgres_store")
def _postgres_store(postgres: str) -> str:
    """A PostgreSQL store without a table."""
    engine = open_store(postgres)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    store: str = request.getfixturevalue("postgres_store")
    return store
