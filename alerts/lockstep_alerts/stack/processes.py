"""Starts servers that outlive the command, recognises them later, and stops them."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

_POLL_SECONDS = 0.1
_TERM_SECONDS = 10.0
_KILL_SECONDS = 5.0
_HTTP_OK = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server to start: its command, its URL, and the path that answers when it is ready."""

    name: str
    command: tuple[str, ...]
    url: str
    ready_path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A server that was started, as stack.json stores it."""

    url: str
    pid: int
    command: tuple[str, ...]


def start(server: Server, log: Path) -> subprocess.Popen[bytes]:
    """Starts the server in a session of its own; its output goes to the log.

    Until the server is ready, the handle says whether it lives: a process that still loads its
    program, or a wrapper of it, has another command line in /proc, or none.

    Raises:
        OSError: the program cannot be run or the log not be written.
    """
    with log.open("ab") as sink:
        return subprocess.Popen(
            server.command,
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
