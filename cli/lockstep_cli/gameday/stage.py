"""The stack on which the rows are played: Prometheus, Alertmanager, pager and ledger."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import click
import msgspec

from lockstep_catalogue.windows import spelled
from lockstep_cli.gameday import sweeper
from lockstep_cli.gameday.fake_node import build_nvml
from lockstep_cli.small_server import free_port
from lockstep_records.file_access.atomic_file import write_atomically

LOCKSTEP = (sys.executable, "-P", "-m", "lockstep_cli.main")
INTERVAL_SECONDS = 5
_OURS = "LOCKSTEP_GAMEDAY"
_POLL_SECONDS = 0.25
_TERM_SECONDS = 10.0


class StoppedError(RuntimeError):
    """The game day ends before the row has."""


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """What the pager received at once: one page or ticket."""

    wall_seconds: float
    receiver: str
    status: str
    alerts: tuple[dict[str, Any], ...]

    def names(self) -> set[str]:
        """The names of its alerts."""
        return {alert["labels"].get("alertname", "") for alert in self.alerts}

    def clusters(self) -> set[str]:
        """The clusters of its alerts; empty where they name none."""
        return {alert["labels"].get("cluster", "") for alert in self.alerts}


def read_notifications(folder: Path) -> list[Notification]:
    """What the pager of a stage received, in the order of arrival, by the stage's folder."""
    path = folder / "stack" / "pages.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        Notification(
            wall_seconds=datetime.fromisoformat(page["time"]).timestamp(),
            receiver=page["receiver"],
            status=page["status"],
            alerts=tuple(page["alerts"]),
        )
        for page in map(json.loads, lines)
    ]


class Stage:
    """Servers that all rows share; leaving it ends every process that was started for it.

    Args:
        stack: further options of ``lockstep stack up``.
        has_ledger: whether there is one, and the driver made of C.

    Attributes:
        folder: of evidence, on disk.
        memory: of jobs, on a tmpfs.
        nvml: the driver made of C; None without a compiler.
        stopped: set when the game day is to end early.
        servers_table: what ``lockstep stack up`` has printed.
    """

    def __init__(
        self,
        folder: Path,
        clusters: Iterable[str],
        stopped: threading.Event | None = None,
        *,
        stack: tuple[str, ...] = ("--interval", spelled(INTERVAL_SECONDS)),
        has_ledger: bool = True,
    ) -> None:
        self.folder, self._clusters, self._options = folder, tuple(clusters), stack
        self.memory = Path(tempfile.mkdtemp(prefix="lockstep-stage-", dir="/dev/shm"))
        self._has_ledger = has_ledger
        self.stopped = stopped or threading.Event()
        self.nvml: Path | None = None
        self.servers_table = ""
        self.store = folder / "ledger" / "ledger.db"
        self.ledger = f"http://127.0.0.1:{free_port()}"
        self._targets = set[str]()
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._starts = dict[int, Callable[[], subprocess.Popen[bytes]]]()
        self.processes = dict[str, subprocess.Popen[bytes]]()

    def __enter__(self) -> Self:
        self._open.callback(self._sweep, self._start_sweeper())
        with self._open:
            self._start()
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _start(self) -> None:
        if self._has_ledger:
            self._start_ledger()
        stack = str(self.folder / "stack")
        self._open.callback(self.lockstep, "stack", "down", "--dir", stack, is_checked=False)
        self.servers_table = self.lockstep("stack", "up", "--dir", stack, *self._options)
        ledgers = [{"targets": [self.ledger.removeprefix("http://")]}] * self._has_ledger
        write_atomically(self.folder / "stack" / "ledgers.json", json.dumps(ledgers))

    def _start_ledger(self) -> None:
        with suppress(OSError, subprocess.CalledProcessError):
            self.nvml = build_nvml(self.memory)
        self.store.parent.mkdir(parents=True)
        clusters = (part for name in self._clusters for part in ("--cluster", name))
        self.start(
            "ledger",
            *("ledger", "serve", "--listen", self.ledger.removeprefix("http://")),
            *("--store", str(self.store), *clusters),
            *("--scrape-interval", spelled(INTERVAL_SECONDS)),
        )

    @property
    def environment(self) -> dict[str, str]:
        """Of every process that is started, by which a last look finds all of them."""
        return {**os.environ, _OURS: str(self.memory)}

    def lockstep(self, *words: str, is_checked: bool = True, columns: int = 200) -> str:
        """Output of a command of ours; a ClickException where it fails."""
        done = subprocess.run(
            [*LOCKSTEP, *words],
            capture_output=True,
            text=True,
            check=False,
            env={**self.environment, "COLUMNS": str(columns)},
        )
        if is_checked and done.returncode:
            reason = " ".join((done.stdout + done.stderr).strip().splitlines()[-2:])
            raise click.ClickException(f"lockstep {' '.join(words[:2])} failed: {reason}")
        return done.stdout

    def start(
        self, name: str, *words: str, folder: Path | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        """A command of ours that runs until it is ended or the stage is left."""
        with ((folder or self.folder) / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*LOCKSTEP, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **environment},
                start_new_session=True,  # Ctrl-C is for the game day, which ends them in order
            )
        self.processes[name] = process
        self._starts[process.pid] = lambda: self.start(name, *words, folder=folder, **environment)
        self._open.callback(end, process)
        return process

    def again(self, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Starts what ``start`` has started once more, in the same way."""
        return self._starts[process.pid]()

    def server_pid(self, name: str) -> int:
        """Of ``prometheus``, ``alertmanager``, ``pager``, or what ``start`` was called with."""
        if name in self.processes:
            return self.processes[name].pid
        return int(self._stack()[name]["pid"])

    def stop_server(self, name: str) -> None:
        """Ends a server of the stage, in order."""
        if name in self.processes:
            end(self.processes[name])
            return
        pid = self.server_pid(name)
        os.kill(pid, signal.SIGTERM)
        self.wait(_TERM_SECONDS, lambda: not _lives(pid))

    def start_server(self, name: str) -> None:
        """Starts a server anew that was stopped, with its address and its data."""
        if name in self.processes and self.processes[name].pid in self._starts:
            self.again(self.processes[name])
            return
        stack = self._stack()
        with (self.folder / "stack" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                stack[name]["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self._open.callback(end, process)
        stack[name]["pid"] = process.pid
        write_atomically(self.folder / "stack" / "stack.json", json.dumps(stack))

    def url(self, name: str) -> str:
        """Of ``prometheus``, ``alertmanager``, ``pager`` or ``boards``."""
        return str(self._stack()[name]["url"])

    def stack_pids(self) -> dict[str, int]:
        """Of Prometheus, Alertmanager, pager and boards."""
        return {name: int(server["pid"]) for name, server in self._stack().items()}

    def _stack(self) -> dict[str, Any]:
        state = (self.folder / "stack" / "stack.json").read_text(encoding="utf-8")
        stack: dict[str, Any] = json.loads(state)
        return stack

    def target(self, address: str, *, is_added: bool = True) -> None:
        """Adds an agent to those that Prometheus scrapes, or takes it away."""
        with self._lock:
            (self._targets.add if is_added else self._targets.discard)(address)
            document = json.dumps([{"targets": sorted(self._targets)}])
            write_atomically(self.folder / "stack" / "targets.json", document)

    def notifications(
        self, cluster: str, is_own: Callable[[Mapping[str, str]], bool]
    ) -> list[Notification]:
        """What the pager has received of a cluster, own alerts alone, in the order of arrival.

        A notification that came for somebody else's alert of the same group is left out.
        """
        received, before = list[Notification](), set[str]()
        for each in self.all_notifications():
            if cluster not in each.clusters():
                continue
            own = tuple(alert for alert in each.alerts if is_own(alert["labels"]))
            names = {json.dumps([alert["labels"], alert["status"]]) for alert in each.alerts}
            mine = {json.dumps([alert["labels"], alert["status"]]) for alert in own}
            if own and (mine - before or not names - before):
                received.append(msgspec.structs.replace(each, alerts=own))
            before |= names
        return received

    def all_notifications(self) -> list[Notification]:
        """What the pager has received, in the order of arrival."""
        return read_notifications(self.folder)

    def wait(self, seconds: float, holds: Callable[[], bool] = lambda: False) -> bool:
        """Polls until the condition holds or the time is over; StoppedError when stopped."""
        deadline = time.monotonic() + seconds
        while not (held := holds()) and time.monotonic() < deadline:
            if self.stopped.wait(_POLL_SECONDS):
                raise StoppedError
        return held

    def _start_sweeper(self) -> subprocess.Popen[bytes]:
        """A process that outlives the game day, and ends then what that has left."""
        words = (f"{_OURS}={self.memory}", str(self.memory), str(self.folder))
        return subprocess.Popen(
            [sys.executable, "-I", "-S", sweeper.__file__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _sweep(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=2 * _TERM_SECONDS)


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def empty(folder: Path, option: str = "--keep", writer: str = "game day") -> None:
    """Empties a folder of evidence; a usage error where it holds anything else."""
    marker = folder / f".lockstep-{writer.replace(' ', '')}"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise click.UsageError(
            f"{option} {folder} holds files that no {writer} wrote; choose another folder"
        )
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        marker.touch()
    except OSError as error:
        raise click.UsageError(f"{option} {folder} cannot be written ({error.strerror})") from error


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """Ends a process, by SIGKILL where the signal does not; a stopped one is continued first."""
    if process.poll() is None:
        for each in (signal.SIGCONT, number):
            process.send_signal(each)
        try:
            process.wait(timeout=_TERM_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
