"""Ranks of jobs that map NCCL, the first of which answers: a file a poll, the last stays."""

import json
import os
import socket
import subprocess
import sys
from atexit import register as call_at_exit  # a fixture replaces the module's own
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import randrange
from shutil import rmtree
from tempfile import mkdtemp
from typing import Self

from outcomes.progress.ras_mesh import as_json

RANKS = 8
# The first rank: how it answers is a JSON line in a file, with a method and the bytes after it.
LISTENER = """
import json, os, socket, struct, sys, threading, time
port, folder = int(sys.argv[1]), sys.argv[2]
polls = 0
def serve(connection):
    global polls
    asked = b""
    while b"STATUS\\n" not in asked:
        part = connection.recv(4096)
        if not part:
            return
        asked += part
    with open(folder + "/asked", "ab") as log:
        log.write(b"%r %r\\n" % (time.monotonic(), asked))
    files = sorted(name for name in os.listdir(folder) if name.startswith("answer"))
    with open(folder + "/" + files[min(polls, len(files) - 1)], "rb") as file:
        how, data = json.loads(file.readline()), file.read()
    polls += 1
    if how == "silence":
        time.sleep(3600)
    if how == "die":
        os._exit(1)
    if how == "drip":
        for at in range(len(data)):
            connection.sendall(data[at : at + 1])
            time.sleep(1)
    if how == "leave":
        server.shutdown(socket.SHUT_RDWR)  # else accept holds it
        server.close()
        open(folder + "/left", "w").close()
        time.sleep(3600)
    if how == "reset":
        connection.sendall(data[: len(data) // 2])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return
    for _ in range({"endless": 1 << 30, "100 times": 100}.get(how, 1)):
        connection.sendall(data)
def run(connection):
    with connection:
        try:
            serve(connection)
        except OSError:
            pass
server = socket.create_server(("127.0.0.1", port), reuse_port=True)
os.write(1, b"ready\\n")
while True:
    try:
        accepted = server.accept()[0]
    except OSError:
        time.sleep(3600)
    threading.Thread(target=run, args=(accepted,), daemon=True).start()
"""


_PROGRAM = """
from lockstep_agent.jobs import ras_watch
from lockstep_agent.sources import nccl_processes, ras_socket
from lockstep_cli.main import main
ras_watch.RasWatch.poll_seconds = ras_watch.POLL_SECONDS = POLL
ras_watch._TURN_SECONDS = ras_socket.ask.__kwdefaults__["limit_seconds"] = ANSWER
find = nccl_processes.NcclProcesses.__init__
find.__defaults__ = tuple(
    0.0 if each == nccl_processes.SETTLED_SECONDS else each for each in find.__defaults__
)
main()
"""


def agent_program(poll_seconds: float, answer_seconds: float) -> tuple[str, ...]:
    """The program itself, with these periods, which asks processes from their birth on."""
    text = _PROGRAM.replace("POLL\n", f"{poll_seconds}\n").replace("ANSWER", f"{answer_seconds}")
    return (sys.executable, "-c", text)


@cache
def nccl_library(name: str = "libnccl.so.2.28.9", version: str = "") -> Path:
    """A library of that name, which holds the words by which NCCL tells its version."""
    folder = Path(mkdtemp(prefix="nccl-"))
    call_at_exit(rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    source = f'const char version[] = "NCCL version {version}";\n' if version else "int none;\n"
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / name), "-x", "c", "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return folder / name


def free_port() -> int:
    """One that no client of this machine is given meanwhile."""
    while True:
        with (
            suppress(OSError),
            socket.create_server(("127.0.0.1", randrange(12_000, 32_000))) as own,
        ):
            port: int = own.getsockname()[1]
            return port


class RasJob:
    """Ranks as processes that map the library, each run inside a command."""

    def __init__(
        self,
        library: Path,
        *,
        port: int | None = None,
        ranks: int = RANKS,
        inside: Sequence[str] = (),
        **variables: str,
    ) -> None:
        self.port, self.folder = port or free_port(), Path(mkdtemp(prefix="ras-"))
        self.folder.chmod(0o777)
        listen = (sys.executable, "-I", "-S", "-c", LISTENER, str(self.port), str(self.folder))
        waits = ("sh", "-c", "echo ready; exec sleep 3600")
        environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(library)} | {
            "NCCL_RAS_ADDR": f"localhost:{self.port}",
            "WORLD_SIZE": str(ranks),
            **variables,
        }
        self.processes = [
            subprocess.Popen(
                [*inside, *(waits if rank else listen)],
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]
        for each in self.processes:
            assert each.stdout
            assert each.stdout.readline() == b"ready\n"
        self.pids = [each.pid for each in self.processes]

    def says(self, *lines: str, pids: Sequence[int] | None = None) -> None:
        """Answers with counts, a line a poll, in the JSON of 2.28.9, which lacks a comma."""
        for number, line in enumerate(lines):
            text = as_json(line, comma=False, pids=pids or self.pids, host="127.0.0.1")
            self.sends(text.encode(), number=number)

    def sends(self, data: bytes, how: str = "whole", number: int = 0) -> None:
        """Answers with bytes, whole, dripping, without an end, reset, or not at all."""
        written = self.folder / "new"
        written.write_bytes(json.dumps(how).encode() + b"\n" + data)
        written.rename(self.folder / f"answer-{number:03d}")

    @property
    def asked_seconds(self) -> list[float]:
        """When it was asked, on the monotonic clock."""
        log = self.folder / "asked"
        text = log.read_text(encoding="utf-8") if log.exists() else ""
        return [float(line.split()[0]) for line in text.splitlines()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.processes:
            each.kill()
            each.wait()
            assert each.stdout
            each.stdout.close()
