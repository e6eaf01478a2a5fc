"""Runs on a machine that other processes keep busy: healthy ones, of which none may be accused.

``healthy_runs.py``: twenty runs of the trainer while two processes compute all the time.
``healthy_runs.py --fault unbalanced-stage:rank=1,step=60,until=end``: the same with a rank that is
slow by itself, and has to be named.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LOCKSTEP = (sys.executable, "-m", "lockstep_cli.main")
_MODEL = ("--layers", "2", "--width", "64", "--sequence", "64", "--eval-every", "0",
          "--eval-windows", "1", "--checkpoint-every", "0", "--log-every", "50")  # fmt: skip
_BUSY_PROCESSES = 2
_ACCUSING = frozenset({"slow", "hung", "failed"})


def _compute() -> None:
    while True:
        sum(range(100_000))


def _run(root: Path, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """JSON of the report on one run."""
    job = f"run-{number}"
    faults = [word for fault in options.fault for word in ("--fault", fault)]
    command = [*LOCKSTEP, "train", "--nproc-per-node", str(options.ranks), "--job-id", job,
               "--dir", str(root), "--steps", str(options.steps), "--seed", str(number), *_MODEL,
               *faults]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "LOCKSTEP_DIR"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    report = [*LOCKSTEP, "report", str(root / "jobs" / job), "--json", "-"]
    done = subprocess.run(report, check=True, capture_output=True, text=True)
    payload: dict[str, Any] = json.loads(done.stdout)
    return payload


def _row(number: int, payload: dict[str, Any]) -> str:
    verdict, lost_ratio = payload["verdict"], payload["lost_ratio"]
    named = f"{verdict['kind']} {verdict['ranks'] or ''}".strip()
    lost = "unknown" if lost_ratio is None else f"{lost_ratio:.2%}"
    median = 1e3 * payload["steps"]["median_seconds"]
    cells = (number, payload["severity"], payload["headline"], named, lost, f"{median:.1f}")
    return f"| {' | '.join(map(str, cells))} |"


def _keep(root: Path, number: int, folder: Path | None) -> None:
    if folder is not None:
        recording = root / "jobs" / f"run-{number}"
        ignored = shutil.ignore_patterns("*.sock")
        shutil.copytree(recording, folder / recording.name, ignore=ignored)


def main() -> None:
    """Prints the headline of each run, and how many accuse somebody."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--fault", action="append", default=[], help="As lockstep train takes it.")
    parser.add_argument("--side-by-side", type=int, default=1, help="Runs side by side.")
    parser.add_argument("--keep", type=Path, help="Folder for the recordings of runs that accuse.")
    options = parser.parse_args()
    others = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(_BUSY_PROCESSES)]
    for process in others:
        process.start()
    root = Path(tempfile.mkdtemp(prefix="healthy-", dir="/dev/shm"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, {_BUSY_PROCESSES} busy processes, "
          f"{options.runs} runs of {options.ranks} ranks x {options.steps} steps"
          f"{', '.join(['', *options.fault])}\n")  # fmt: skip
    print("| run | severity | headline | verdict | lost to slow ranks | median step, ms |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    accused = 0
    try:
        with ThreadPoolExecutor(options.side_by_side) as pool:
            numbers = range(options.runs)
            runs = pool.map(lambda number: _run(root, number, options), numbers)
            for number, payload in enumerate(runs):
                print(_row(number, payload), flush=True)
                if payload["severity"] in _ACCUSING:
                    accused += 1
                    _keep(root, number, options.keep)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        for process in others:
            process.kill()
    print(f"\n{accused} of {options.runs} headlines accuse somebody")


if __name__ == "__main__":
    main()
