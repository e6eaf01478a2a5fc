"""The programs of one node: an agent, a ledger and a neighbour's job, each of its own user."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from lockstep_cli.small_server import free_port

from . import users
from .users import AGENT, LEDGER, VICTIM

START_SECONDS = 30.0
READER, WRITER, LAUNCHER, SCHEDULER = "r" * 24, "a" * 24, "l" * 24, "s" * 24
# Nothing here may exhaust the machine: address space and file size of what reads hostile input.
BOUNDS = ("prlimit", "--as=6442450944", "--fsize=536870912")


class Programs:
    """What runs on the node, until it is closed."""

    def __init__(self) -> None:
        self.launcher_token = LAUNCHER
        self.prometheus_port = self.pager_port = self.boards_port = 0
        self.private_text = os.urandom(16).hex().encode()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.base = Path(tempfile.mkdtemp(prefix="lockstep-tenants-", dir="/dev/shm"))
        self.root = self.base / "lockstep"
        self._lay_folders()
        try:
            self._start_programs()
        except BaseException:
            self.close()
            raise

    def _lay_folders(self) -> None:
        """Folders as ``deploy/systemd/lockstep-agent.tmpfiles`` creates them."""
        self.base.chmod(0o755)
        for path, mode in ((self.root, 0o2775), (self.root / "jobs", 0o3777)):
            path.mkdir()
            os.chown(path, 0, AGENT.gid)
            path.chmod(mode)
        homes = {"agent": AGENT, "victim": VICTIM, "attacker": users.ATTACKER, "ledger": LEDGER}
        for name, user in homes.items():
            (self.base / name).mkdir(mode=0o700)
            os.chown(self.base / name, user.uid, user.gid)
        (self.base / "open").mkdir()
        self.private = self.base / "open" / "private.txt"
        self._write(self.private, self.private_text, VICTIM)
        (self.base / "kmsg").touch()
        (self.base / "kmsg").chmod(0o666)

    @staticmethod
    def _write(path: Path, data: bytes, user: users.User, mode: int = 0o600) -> None:
        path.write_bytes(data)
        os.chown(path, user.uid, user.gid)
        path.chmod(mode)

    def _start_programs(self) -> None:
        agent, launcher = " scope=agent", f" scope=launcher owner={users.ATTACKER.uid}"
        writers, readers = self.base / "ledger" / "writers", self.base / "ledger" / "readers"
        # Beside the tokens of agent, attacker and scheduler those of a guest with words of its own.
        others = f"{SCHEDULER} scope=scheduler\n{'g' * 24} scope=launcher projects=speech\n"
        lines = f"{WRITER}{agent}\n{LAUNCHER}{launcher}\n{others}"
        self._write(writers, lines.encode(), LEDGER)
        self._write(readers, f"{READER}\n{'p' * 24} projects=vision\n".encode(), LEDGER)
        token = self.base / "agent" / "token"
        self._write(token, WRITER.encode(), AGENT)
        words = ("ledger", "serve", "--listen", "127.0.0.1:0", "--cluster", "east")
        store = ("--store", self.base / "ledger" / "ledger.db", "--max-rate", "1000")
        tokens = ("--writer-tokens", writers, "--reader-tokens", readers)
        self.ledger = self._start("ledger", LEDGER, *words, *store, *tokens)
        self.ledger_port = self._port("ledger")
        ledger = ("--ledger", f"http://127.0.0.1:{self.ledger_port}/api/events")
        self.agent = self._start(
            "agent",
            AGENT,
            *("agent", "--listen", "127.0.0.1:0", "--dir", self.root, "--cluster", "east"),
            *("--node", "node-7", "--tick", "200ms", "--linger", "1h", "--hang-timeout", "1h"),
            *("--kmsg", self.base / "kmsg", "--state", self.base / "agent" / "state"),
            *("--archive", self.base / "agent" / "archive", *ledger),
            *("--ledger-token-file", token, "--fabric-manager-log", self.base / "none"),
        )
        self.agent_port = self._port("agent")
        self._start_servers()
        script = [sys.executable, "-m", "tenants.victim", str(self.root), "victim"]
        pid = self._spawn("victim", [*VICTIM.prefix(), *script]).pid
        self._wait("victim", r"(ready)")
        children = Path(f"/proc/{pid}/task/{pid}/children")
        self.victim_pids = tuple(int(word) for word in children.read_text().split())

    def _start_servers(self) -> None:
        """A pager, and boards over a Prometheus that logs its queries."""
        self.prometheus_port, self.pager_port, self.boards_port = (free_port() for _ in range(3))
        for name in ("pager", "prometheus"):
            (self.base / name).mkdir()
        pager = ("-m", "lockstep_alerts.stack.pager", "--port", str(self.pager_port), "--dir", ".")
        config = self.base / "prometheus" / "prometheus.yaml"
        target = {"targets": [f"127.0.0.1:{self.agent_port}"]}
        options = {"scrape_interval": "1s", "query_log_file": str(self.base / "queries.log")}
        scrape = {"job_name": "agent", "static_configs": [target]}
        config.write_text(yaml.safe_dump({"global": options, "scrape_configs": [scrape]}))
        words = f"--config.file={config}", f"--web.listen-address=127.0.0.1:{self.prometheus_port}"
        self._spawn("pager", [*BOUNDS, sys.executable, "-P", *pager])
        self._spawn("prometheus", [*BOUNDS, "prometheus", *words])
        self._wait("prometheus", "(Server is ready)")
        (self.base / "boards").mkdir()
        self._start(
            "boards", users.ROOT, "dashboards", "serve", "--listen",
            f"127.0.0.1:{self.boards_port}", "--prometheus",
            f"http://127.0.0.1:{self.prometheus_port}", "--scrape-interval", "5s",
        )  # fmt: skip

    def _start(self, name: str, user: users.User, *words: str | Path) -> subprocess.Popen[bytes]:
        return self._spawn(name, [*BOUNDS, *users.command(user, *words)])

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Starts a program in a folder of its own, with a log of its name."""
        home, log = self.base / name, self.base / f"{name}.log"
        process = users.start(command, home, log, start_new_session=True)
        self._processes.append(process)
        return process

    def _port(self, name: str) -> int:
        return int(self._wait(name, r"serving https?://127\.0\.0\.1:(\d+)"))

    def _wait(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            text = (self.base / f"{name}.log").read_text(errors="replace")
            if found := re.search(pattern, text):
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"{name} does not start: {text[-2000:]}")

    def close(self) -> None:
        """Ends every program and removes the folders."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.base, ignore_errors=True)
