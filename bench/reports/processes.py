"""Runs whole processes of two tools in turn: whom each names, and how long it takes."""

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
_TIMEOUT_SECONDS = 900
_MAX_REASON_LENGTH = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One finished process: its answer, and its seconds on the clock and of processors."""

    answer: str
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Both tools on one recording, one directly after the other."""

    ours: Process
    theirs: Process


def run_lockstep(recording: Path) -> Process:
    """The report on a recording, process start to JSON."""
    command = [str(Path(sys.executable).with_name("lockstep")), "report", str(recording)]
    return _run([*command, "--json", "-"], peers=None, read_answer=_lockstep_verdict)


def run_hta(recording: Path, peers: Path) -> Process:
    """HTA's potential stragglers, process start to answer."""
    command = [sys.executable, str(_HERE / "competitor_hta.py"), str(recording)]
    return _run(command, peers=peers, read_answer=_hta_ranks)


def run_in_turn(recording: Path, peers: Path, num_pairs: int) -> list[Pair]:
    """Pairs of processes; the tool that goes first alternates."""
    pairs = []
    for number in range(num_pairs):
        if number % 2:
            ours = run_lockstep(recording)
            pairs.append(Pair(ours=ours, theirs=run_hta(recording, peers)))
        else:
            theirs = run_hta(recording, peers)
            pairs.append(Pair(ours=run_lockstep(recording), theirs=theirs))
    return pairs


def figures(runs: Sequence[Process]) -> str:
    """Seconds: median and least on the clock, and median of the processors."""
    wall = [run.wall_seconds for run in runs]
    cpu = statistics.median(run.cpu_seconds for run in runs)
    return f"{statistics.median(wall):.2f} / {min(wall):.2f} / {cpu:.2f}"


def ratio(pairs: Sequence[Pair]) -> str:
    """Median over the pairs of their seconds to ours: on the clock, and of the processors."""
    wall = statistics.median(pair.theirs.wall_seconds / pair.ours.wall_seconds for pair in pairs)
    cpu = statistics.median(pair.theirs.cpu_seconds / pair.ours.cpu_seconds for pair in pairs)
    return f"{wall:.1f} / {cpu:.1f}"


def missing_reason(module: str, peers: Path) -> str | None:
    """Why a tool cannot be run; None where it can."""
    process = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        env=environment(peers),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if process.returncode == 0:
        return None
    return (process.stderr.strip().splitlines() or ["no output"])[-1][:_MAX_REASON_LENGTH]


def environment(peers: Path | None) -> dict[str, str]:
    """The environment of this process, with the folder of the other tools on the path."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return variables if peers is None else {**variables, "PYTHONPATH": str(peers.absolute())}


def _run(command: list[str], *, peers: Path | None, read_answer: Callable[[str], str]) -> Process:
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment(peers))
        # wait4 counts the processes that it started and waited for too: HTA reads in several.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begin
        out.seek(0)
        err.seek(0)
        output, errors = out.read().decode(), err.read().decode().strip()
    last = (errors.splitlines() or ["no output"])[-1][:_MAX_REASON_LENGTH]
    answer = f"no answer: {last}" if status else read_answer(output)
    return Process(answer=answer, wall_seconds=wall, cpu_seconds=usage.ru_utime + usage.ru_stime)


def _lockstep_verdict(output: str) -> str:
    verdict = json.loads(output)["verdict"]
    ranks = ", ".join(str(rank) for rank in verdict["ranks"])
    return " ".join(filter(None, (verdict["kind"], ranks, verdict["phase"])))


def _hta_ranks(output: str) -> str:
    answer = json.loads(output.splitlines()[-1])
    if "error" in answer:
        return f"no answer: {answer['error']}"
    return "ranks " + ", ".join(str(rank) for rank in answer["ranks"])
