"""Prometheus, Alertmanager, a pager and the boards as plain processes over one folder."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import httpx

from lockstep_alerts.alert import RULES_FILES
from lockstep_alerts.output import ROUTES_FILE, render, to_yaml, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.spec import Spec
from lockstep_catalogue.series_budget import MAX_SERIES
from lockstep_catalogue.windows import ScrapeWindows, spelled
from lockstep_cli.options import read_address
from lockstep_records.file_access.atomic_file import write_atomically

TARGETS_FILE = "targets.json"
_LEDGERS_FILE = "ledgers.json"
SCRAPE_LIMITS = {
    # Five times an agent's budget: a scrape beyond a limit is lost whole, and its node unseen.
    "sample_limit": 5 * MAX_SERIES,
    "label_limit": 48,
    "label_value_length_limit": 8192,  # twice the longest path of a mount
    "body_size_limit": "16MB",
}
"""What Prometheus takes of an agent in a scrape, whatever answers there."""


def prometheus_config(
    windows: ScrapeWindows, *, alertmanager: str, prometheus: str
) -> dict[str, object]:
    """The configuration of a Prometheus that evaluates the rules.

    It scrapes the agents, the ledger where a file lists one, and itself: an alert watches how long
    its rules take.
    """
    return {
        "global": {
            "scrape_interval": spelled(windows.scrape_seconds),
            "evaluation_interval": spelled(windows.evaluation_seconds),
        },
        "rule_files": [RULES_FILES],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [
            {
                "job_name": "lockstep-agent",
                "honor_labels": True,
                **SCRAPE_LIMITS,
                "file_sd_configs": [{"files": [TARGETS_FILE]}],
            },
            {
                "job_name": "lockstep-ledger",
                "honor_labels": True,
                "file_sd_configs": [{"files": [_LEDGERS_FILE]}],
            },
            {"job_name": "prometheus", "static_configs": [{"targets": [prometheus]}]},
        ],
    }


_POLL_SECONDS = 0.1
_TERM_SECONDS = 10.0
_KILL_SECONDS = 5.0
_HTTP_OK = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A server that was started, as stack.json stores it."""

    url: str
    pid: int
    command: tuple[str, ...]


def start(command: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
    """Starts the server in a session of its own; its output goes to the log. Or OSError.

    Until the server is ready, the handle says whether it lives: a process that still loads its
    program, or a wrapper of it, has another command line in /proc, or none.
    """
    with log.open("ab") as sink:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal of `stack up` goes to its process group: not to the servers.
            start_new_session=True,
        )


def is_alive(running: Running) -> bool:
    """Whether the process lives and is the one that was started: pids are used again."""
    try:
        arguments = Path(f"/proc/{running.pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return False
    # /proc shows a script with its interpreter before it; the arguments after it are the same.
    started = [os.fsencode(argument) for argument in running.command[1:]]
    return bool(arguments) and arguments[-len(started) :] == started


def is_ready(url: str, path: str) -> bool:
    """Whether the server answers that it is ready."""
    try:
        # trust_env=False: a proxy of the environment would not reach loopback.
        answer = httpx.get(url + path, timeout=1, trust_env=False)
    except httpx.TransportError:
        return False
    return answer.status_code == _HTTP_OK


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Polls until the condition holds; False when the time is over first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def stop(running: Running) -> None:
    """Stops the server by SIGTERM, and by SIGKILL where that does not end it."""
    for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        if not is_alive(running):
            return
        os.kill(running.pid, number)
        wait_for(lambda: not is_alive(running), seconds)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stops a server that this process started, ready or not."""
    process.terminate()
    try:
        process.wait(_TERM_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_KILL_SECONDS)


STATE_FILE = "stack.json"
_PROMETHEUS_FILE = "prometheus.yaml"
_HEAD = "# Written by `lockstep stack up`, anew each time.\n"
_READY_SECONDS = 30.0
_LOG_TAIL_BYTES = 4096
_START_ATTEMPTS = 3
RESEND_SECONDS = 180
"""Alertmanager takes an alert for resolved that has not come again for four times as long.

A restart or an upgrade of Prometheus ends in less, and no standing page is notified anew.
"""
BOARDS = "boards"
READY_PATHS = {
    "prometheus": "/-/ready",
    "alertmanager": "/-/ready",
    "pager": "/pages",
    BOARDS: "/healthz",
}
_PROGRAMS = {
    "prometheus": (("prometheus",), "prometheus"),
    "alertmanager": (("alertmanager", "prometheus-alertmanager"), "prometheus-alertmanager"),
}


class StackError(click.UsageError):
    """The stack cannot start or stop; the text says why and what to do."""


class PortTakenError(StackError):
    """Another process bound the port between its choice and the start of the server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackOptions:
    """Options of ``stack up``; ``ports`` by name of the server, any free one where left out."""

    folder: Path
    targets: tuple[str, ...]
    group_interval: Duration
    ports: dict[str, int]

    def __post_init__(self) -> None:
        for target in self.targets:
            try:
                read_address(target)
            except ValueError as error:
                raise StackError(f"--target {error}") from error


def _programs() -> dict[str, str]:
    executables = {}
    for name, (candidates, package) in _PROGRAMS.items():
        paths = [path for candidate in candidates if (path := shutil.which(candidate))]
        if not paths:
            raise StackError(f"{name} is not on PATH; install it (Debian package {package})")
        executables[name] = paths[0]
    return executables


def _pick_ports(chosen: dict[str, int]) -> dict[str, int]:
    """The port of every server; all are held until the last is chosen, so that they differ."""
    picked = {}
    with ExitStack() as probes:
        for name in READY_PATHS:
            probe = probes.enter_context(socket.socket())
            # Without it a port of a stack that has just stopped is refused for a minute.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", chosen.get(name, 0)))
            except OSError as error:
                raise StackError(
                    f"--{name}-port {chosen.get(name)}: {error.strerror}; name a free one"
                ) from error
            picked[name] = probe.getsockname()[1]
    return picked


def _write_inputs(options: StackOptions, spec: Spec, urls: dict[str, str]) -> None:
    delivery = Delivery(
        runbook_base=f"{urls['pager']}/runbooks/",
        dashboard_base=urls[BOARDS],
        pager_base=urls["pager"],
        group_interval=options.group_interval,
    )
    listens = {name: url.removeprefix("http://") for name, url in urls.items()}
    prometheus = prometheus_config(
        spec.windows, alertmanager=listens["alertmanager"], prometheus=listens["prometheus"]
    )
    targets = [{"targets": list(options.targets)}]
    files = {
        **render(spec, delivery),
        _PROMETHEUS_FILE: to_yaml(prometheus, _HEAD),
        TARGETS_FILE: json.dumps(targets, indent=2) + "\n",
    }
    write_files(options.folder, files)


def _commands(
    folder: Path, programs: dict[str, str], urls: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    listens = {name: url.removeprefix("http://") for name, url in urls.items()}
    port = listens["pager"].rpartition(":")[2]
    return {
        "pager": (
            *(sys.executable, "-P", "-m", "lockstep_alerts.stack.pager"),
            *("--port", port, "--dir", f"{folder}"),
        ),
        "alertmanager": (
            programs["alertmanager"],
            f"--config.file={folder / ROUTES_FILE}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address={listens['alertmanager']}",
            # Links in notifications begin with it; by default they name the host, not loopback.
            f"--web.external-url={urls['alertmanager']}",
            # Empty turns gossip off: two stacks on one machine would join into one cluster.
            "--cluster.listen-address=",
        ),
        "prometheus": (
            programs["prometheus"],
            f"--config.file={folder / _PROMETHEUS_FILE}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={listens['prometheus']}",
            f"--web.external-url={urls['prometheus']}",
            f"--rules.alert.resend-delay={RESEND_SECONDS}s",
            "--enable-feature=exemplar-storage",
        ),
        BOARDS: (
            *(sys.executable, "-P", "-m", "lockstep_cli.main", "dashboards", "serve"),
            *("--prometheus", urls["prometheus"], "--listen", listens[BOARDS]),
        ),
    }


def _start_and_wait(
    name: str, command: tuple[str, ...], url: str, log: Path, undo: ExitStack
) -> Running | None:
    """The server once it is ready; None for boards that cannot be served: alerts need none."""
    process = start(command, log)
    undo.callback(end, process)

    def settled() -> bool:
        return is_ready(url, READY_PATHS[name]) or process.poll() is not None

    if not wait_for(settled, _READY_SECONDS) or process.poll() is not None:
        last_line = read_last_line(log)
        is_port_taken = "address already in use" in last_line.lower()
        if name == BOARDS and not is_port_taken:
            end(process)
            return None
        error = PortTakenError if is_port_taken else StackError
        raise error(f"{name} did not become ready; its log is {log} and ends: {last_line}")
    return Running(url=url, pid=process.pid, command=command)


def read_last_line(log: Path) -> str:
    """The last line of a server's log that is not empty."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "(nothing)")


def up(options: StackOptions, spec: Spec) -> dict[str, Running]:
    """Starts all servers and waits until they are ready; or StackError, and none is left."""
    folder = options.folder.resolve()
    if any(is_alive(running) for running in read_state(folder).values()):
        raise StackError(
            f"--dir {folder}: a stack is running there; stop it by lockstep stack down"
        )
    programs = _programs()
    for attempts_left in reversed(range(_START_ATTEMPTS)):
        try:
            return _start_all(options, spec, folder, programs)
        except PortTakenError:
            # A port that is free when it is chosen may be an outgoing connection's a moment later.
            if not attempts_left:
                raise
    raise AssertionError("the last attempt returns or raises")


def _start_all(
    options: StackOptions, spec: Spec, folder: Path, programs: dict[str, str]
) -> dict[str, Running]:
    ports = _pick_ports(options.ports)
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    try:
        _write_inputs(options, spec, urls)
        with ExitStack() as undo:
            state = {}
            for name, command in _commands(folder, programs, urls).items():
                log = folder / f"{name}.log"
                running = _start_and_wait(name, command, urls[name], log, undo)
                if running is not None:
                    state[name] = running
            document = {name: asdict(running) for name, running in state.items()}
            write_atomically(folder / STATE_FILE, json.dumps(document, indent=2) + "\n")
            undo.pop_all()
    except OSError as error:
        raise StackError(f"--dir {folder}: {error.strerror}; name a writable folder") from error
    return state


def read_state(folder: Path) -> dict[str, Running]:
    """The servers that were started in the folder; StackError for a file of another program."""
    path = folder / STATE_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Running(
                url=fields["url"], pid=int(fields["pid"]), command=tuple(fields["command"])
            )
            for name, fields in document.items()
        }
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StackError(f"{path} was not written by stack up ({error}); remove it") from error


def down(folder: Path) -> list[str]:
    """Stops every server of the folder; the names of those that ran. StackError without any."""
    state = read_state(folder)
    if not state:
        raise StackError(f"--dir {folder}: no stack was started in it")
    running_names = [name for name, running in state.items() if is_alive(running)]
    for running in state.values():
        stop(running)
    (folder / STATE_FILE).unlink(missing_ok=True)
    return running_names
