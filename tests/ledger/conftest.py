"""Stores of both kinds, and a ledger in this process or in one of its own."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from lockstep_ledger.store.database import open_store

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
_SERVER_USER = "nobody"


def run_as_server(command: list[str | Path], *, check: bool) -> None:
    """Runs a program of PostgreSQL, which refuses to run as root."""
    prefix = ["setpriv", "--reuid", _SERVER_USER, "--clear-groups"] if _is_root() else []
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    words = [*prefix, *(str(word) for word in command)]
    subprocess.run(words, check=check, stdout=subprocess.DEVNULL, cwd="/", env=environment)


def _is_root() -> bool:
    return os.geteuid() == 0


@pytest.fixture(scope="session", name="postgres")
def _postgres() -> Iterator[str]:
    """Address of a PostgreSQL of its own, reached by a socket in its own folder."""
    if not POSTGRES or (_is_root() and shutil.which("setpriv") is None):
        pytest.skip("no PostgreSQL here")
    programs = POSTGRES[-1]
    folder = Path(tempfile.mkdtemp(prefix="lockstep-pg-"))
    if _is_root():
        shutil.chown(folder, _SERVER_USER)
    data = folder / "data"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = f"-p {port} -k {folder} -c listen_addresses= -c fsync=off -c max_connections=60"
    control: list[str | Path] = [programs / "pg_ctl", "-D", data]
    create: list[str | Path] = [programs / "initdb", "-D", data, "-A", "trust", "-U", "ledger"]
    try:
        run_as_server([*create, "--no-sync", "-E", "UTF8"], check=True)
        start = [*control, "-w", "-t", "50", "-o", settings, "-l", folder / "log", "start"]
        run_as_server(start, check=True)
        yield f"postgresql://ledger@/postgres?host={folder}&port={port}"
    finally:
        run_as_server([*control, "-m", "immediate", "stop"], check=False)
        shutil.rmtree(folder, ignore_errors=True)


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
