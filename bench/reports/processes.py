"""Whole processes of two contestants in turn: who was accused, and what it took."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_SECONDS = 900
_WORDS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """One process: what it said, and its seconds on the clock and of processors."""

    said: str
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Both contestants on one recording, the one straight after the other."""

    ours: Ended
    theirs: Ended


def lockstep(recording: Path) -> Ended:
    """The report of a recording, process start to JSON."""
    command = [str(Path(sys.executable).with_name("lockstep")), "report", str(recording)]
    return _ended([*command, "--json", "-"], peers=None, say=_our_verdict)


def hta(recording: Path, peers: Path) -> Ended:
    """HTA's potential stragglers, process start to answer."""
    command = [sys.executable, str(_HERE / "side_hta.py"), str(recording)]
    return _ended(command, peers=peers, say=_their_ranks)


def in_turn(recording: Path, peers: Path, pairs: int) -> list[Pair]:
    """Pairs of processes; which goes first changes."""
    rows = []
    for number in range(pairs):
        if number % 2:
            ours = lockstep(recording)
            rows.append(Pair(ours=ours, theirs=hta(recording, peers)))
        else:
            theirs = hta(recording, peers)
            rows.append(Pair(ours=lockstep(recording), theirs=theirs))
    return rows


def figures(runs: Sequence[Ended]) -> str:
    """Median and least of the clock, and the median of the processors' seconds."""
    wall = [run.wall_seconds for run in runs]
    cpu = statistics.median(run.cpu_seconds for run in runs)
    return f"{statistics.median(wall):.2f} / {min(wall):.2f} / {cpu:.2f}"


def ratio(pairs: Sequence[Pair]) -> str:
    """Median over pairs of their seconds to ours: on the clock, and of the processors."""
    wall = statistics.median(one.theirs.wall_seconds / one.ours.wall_seconds for one in pairs)
    cpu = statistics.median(one.theirs.cpu_seconds / one.ours.cpu_seconds for one in pairs)
    return f"{wall:.1f} / {cpu:.1f}"


def missing(module: str, peers: Path) -> str | None:
    """Why a peer cannot be run; None where it can."""
    ended = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        env=environment(peers),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if ended.returncode == 0:
        return None
    return (ended.stderr.strip().splitlines() or ["it said nothing"])[-1][:_WORDS]


def environment(peers: Path | None) -> dict[str, str]:
    """Ours, with the peers' folder to import from."""
    told = {**os.environ, "OMP_NUM_THREADS": "1"}
    return told if peers is None else {**told, "PYTHONPATH": str(peers.absolute())}


def _ended(command: list[str], *, peers: Path | None, say: Callable[[str], str]) -> Ended:
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment(peers))
        # wait4 counts the processes that it started and waited for too: HTA reads in several.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begin
        out.seek(0)
        err.seek(0)
        told, trouble = out.read().decode(), err.read().decode().strip()
    last = (trouble.splitlines() or ["it said nothing"])[-1][:_WORDS]
    said = f"no answer: {last}" if status else say(told)
    return Ended(said=said, wall_seconds=wall, cpu_seconds=usage.ru_utime + usage.ru_stime)


def _our_verdict(told: str) -> str:
    verdict = json.loads(told)["verdict"]
    ranks = ", ".join(str(rank) for rank in verdict["ranks"])
    return " ".join(filter(None, (verdict["kind"], ranks, verdict["phase"])))


def _their_ranks(told: str) -> str:
    answer = json.loads(told.splitlines()[-1])
    if "error" in answer:
        return f"no answer: {answer['error']}"
    return "ranks " + ", ".join(str(rank) for rank in answer["accused"])
