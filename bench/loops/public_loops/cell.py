"""Runs one loop once: its ranks as forked processes, or under ``lockstep run`` where they die."""

import contextlib
import importlib
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from public_loops.injection import Injection, make_tracks
from public_loops.plan import ENDS, FROM_SHARE, LOOPS, STOP_EVERY_SECONDS, STOPPED_SECONDS, Loop

JOB_ID = "loop"
_MAX_SECONDS = 100.0
_POLL_SECONDS = 0.002
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BENCH = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What became of a run.

    Attributes:
        error: why it says nothing; empty where it does.
        struck: wall clock of the fault's first stroke; 0 without.
    """

    error: str = ""
    struck: float = 0.0


def load(name: str) -> ModuleType:
    """The script of a loop, which forked processes then need not import."""
    return importlib.import_module(f"public_loops.scripts.{name}")


def run_loop(name: str, fault: str, folder: Path) -> Run:
    """Runs a loop in this process's children; the process is this run's own.

    Args:
        name: of the loop.
        fault: of its slow rank.
        folder: on a tmpfs, for the job and what the script writes.
    """
    os.chdir(folder)
    os.environ |= {
        "LOCKSTEP_DIR": str(folder),
        "LOCKSTEP_JOB_ID": JOB_ID,
        "LOCKSTEP": "on",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": f"{_BENCH}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "TORCHINDUCTOR_CACHE_DIR": "/dev/shm/lockstep-public-loops-inductor",  # noqa: S108  # a cache
    }
    return _run_launched(name, fault) if fault in ENDS else _run_forked(name, fault, folder)


def _run_launched(name: str, fault: str) -> Run:
    """Under the launcher of its kind, whose word on the end counts."""
    script = [str(Path(__file__).with_name("rank.py")), name, fault]
    lockstep = [sys.executable, "-m", "lockstep_cli.main", "run", "--job-id", JOB_ID]
    launcher = [*lockstep, "--nproc-per-node", str(LOOPS[name].ranks)]
    command = [sys.executable] if LOOPS[name].starts_ranks else launcher
    environment = {**os.environ, "START_METHOD": "spawn"}
    done = subprocess.run(
        [*command, *script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_MAX_SECONDS,
    )
    return Run(error="" if done.returncode else "it did not fail")


def _run_forked(name: str, fault: str, folder: Path) -> Run:
    loop, module = LOOPS[name], load(name)
    tracks = make_tracks(loop)
    Injection(loop, fault, tracks).install(module)
    context = multiprocessing.get_context("fork")
    port = _free_port()
    processes = [
        context.Process(target=_run_rank, args=(module, loop, rank, port, folder))
        for rank in range(1 if loop.starts_ranks else loop.ranks)
    ]
    for process in processes:
        process.start()
    ended = threading.Event()
    stopper = threading.Thread(target=_stop_now_and_then, args=(loop, tracks, ended))
    if fault == "stopped":
        stopper.start()
    deadline = time.monotonic() + _MAX_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    ended.set()
    if stopper.ident is not None:
        stopper.join()
    codes = [process.exitcode for process in processes]
    if any(codes):
        return Run(error=_last_error(folder) or f"exit codes {codes}")
    return Run(struck=tracks[loop.slow_rank].struck)


def _free_port() -> int:
    """One that no connection of another process gets until the loop listens there."""
    first_of_connections = int(_PORT_RANGE.read_text().split()[0])
    for port in random.sample(range(first_of_connections // 2, first_of_connections), k=100):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("localhost", port))
            return port
    raise RuntimeError("no port is free")


def _run_rank(module: ModuleType, loop: Loop, rank: int, port: int, folder: Path) -> None:
    """One rank, with the variables of torchrun; a script that starts ranks has none."""
    with (folder / f"output-{rank}").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    torch.set_num_threads(1)
    if not loop.starts_ranks:
        world = {"WORLD_SIZE": loop.ranks, "LOCAL_WORLD_SIZE": loop.ranks}
        position = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in {**world, **position}.items()}
        os.environ |= {"MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": "loop"}
    module.main()


def _stop_now_and_then(loop: Loop, tracks: Any, ended: threading.Event) -> None:
    """Stops the slow rank's process for a fifth of the time, from a step on."""
    track = tracks[loop.slow_rank]
    while track.forwards <= int(FROM_SHARE * loop.steps) * loop.forwards:
        if ended.wait(_POLL_SECONDS):
            return
    handle = os.pidfd_open(track.pid)
    track.struck = time.time()
    with contextlib.suppress(ProcessLookupError):
        while not ended.is_set():
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            signal.pidfd_send_signal(handle, signal.SIGCONT)
            ended.wait(STOP_EVERY_SECONDS - STOPPED_SECONDS)
    os.close(handle)


def _last_error(folder: Path) -> str:
    """The last line of the first rank that printed an error."""
    for path in sorted(folder.glob("output-*")):
        text = path.read_text(errors="replace")
        if "Traceback" in text:
            return text.strip().splitlines()[-1]
    return ""
