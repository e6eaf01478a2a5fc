"""A PostgreSQL in a folder of its own: to start, kill and restart."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
_SERVER_USER = "nobody"


def is_runnable() -> bool:
    """Whether this machine has a PostgreSQL and this process may start it."""
    return bool(POSTGRES) and (os.geteuid() != 0 or shutil.which("setpriv") is not None)


def _run(command: list[str | Path], *, check: bool = True) -> None:
    """Runs a program of PostgreSQL, which refuses to run as root."""
    is_root = os.geteuid() == 0
    prefix = ["setpriv", "--reuid", _SERVER_USER, "--clear-groups"] if is_root else []
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    words = [*prefix, *(str(word) for word in command)]
    subprocess.run(words, check=check, stdout=subprocess.DEVNULL, cwd="/", env=environment)


@dataclass(frozen=True)
class PostgresServer:
    """A cluster of databases that is reached by a socket in its folder."""

    folder: Path
    port: int
    settings: str = "-c fsync=off"

    @property
    def dsn(self) -> str:
        """Address of its database, without a password."""
        return f"postgresql://ledger@/postgres?host={self.folder}&port={self.port}"

    @property
    def socket_path(self) -> Path:
        return self.folder / f".s.PGSQL.{self.port}"

    def _control(self, *words: str | Path, check: bool = True) -> None:
        _run([POSTGRES[-1] / "pg_ctl", "-D", self.folder / "data", *words], check=check)

    def create(self) -> None:
        words = ["-A", "trust", "-U", "ledger", "--no-sync", "-E", "UTF8"]
        _run([POSTGRES[-1] / "initdb", "-D", self.folder / "data", *words])

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses= -c max_connections=60"
        log = self.folder / "log"
        self._control("-w", "-t", "50", "-o", f"{options} {self.settings}", "-l", log, "start")

    def stop(self, how: str = "immediate") -> None:
        """Ends it; ``immediate`` is as a power cut."""
        self._control("-m", how, "stop", check=False)


@contextmanager
def postgres_server(settings: str = "-c fsync=off") -> Iterator[PostgresServer]:
    """A running server; nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, _SERVER_USER)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = PostgresServer(folder, probe.getsockname()[1], settings)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
