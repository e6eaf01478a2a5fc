"""Runs six scripts in which ranks wait now and then, each with a healthy twin, and prints reports.

``PYTHONPATH=tests python bench/loops/waiting_loops.py [KIND ...] [--keep FOLDER]``: the first line
and the share of lost time stand beside the truth. A kept folder is judged by ``rejudge.py --kept``.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from reports.corpus.cases import make_truth
from reports.corpus.judging import judge_file

from lockstep_reports.readers.pages import read_pages

_SCRIPT = Path(__file__).with_name("waiting_ranks.py")
_RANKS, _JOB_ID, _MAX_SECONDS = 4, "loop", 300.0
_NOISE_SHARE = 0.05
_UNTRUE = ["all in sync", "stopped or killed", "nothing here tells why", "waiting -"]
_KINDS: dict[str, dict[str, Any]] = {
    "collector": {"says": ["garbage|collector"]},
    "evaluation": {"says": ["rank 0"], "may": [0]},
    "logging": {"says": ["rank 0"], "may": [0]},
    "uneven": {"says": ["rank 2", "239|240", "data|finished|ended|done"], "may": [2], "lost": None},
    "barrier": {"says": ["rank 1"], "may": [1], "lost": None},
    "loader": {"says": ["data|loader"], "kinds": ["workload"]},
}
"""What a report says of each kind; of its twin that nobody was slow."""
_TWINS = ("waiting", "healthy")


def run_ranks(kind: str, twin: str, folder: Path) -> None:
    """Trains under the launcher; some kinds end badly."""
    environment = {
        **os.environ, "LOCKSTEP_DIR": str(folder), "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    launcher = [sys.executable, "-m", "lockstep_cli.main", "run", "--job-id", _JOB_ID]
    command = [*launcher, "--nproc-per-node", str(_RANKS), str(_SCRIPT), kind, twin]
    subprocess.run(command, env=environment, timeout=_MAX_SECONDS, check=False, capture_output=True)


def _truth(kind: str, twin: str, folder: Path) -> dict[str, Any]:
    """Patterns of the report, and the share that the strokes of all ranks planted."""
    is_healthy = twin == "healthy"
    fields: dict[str, Any] = {} if is_healthy else {**_KINDS[kind]}
    fields["never"] = list(_UNTRUE)
    if "lost" in fields:
        return fields
    strokes = [float(line) for file in folder.glob("planted-*") for line in file.open()]
    steps = read_pages(folder / "jobs" / _JOB_ID / "0")[0]
    seconds = float(steps.seconds.sum(axis=1).max())
    share = 0.0 if is_healthy else sum(strokes) / seconds
    # On a machine with other work ranks wait for cores, each at another time.
    queued = 0.0 if steps.run_queue is None else float(np.nansum(steps.run_queue)) / seconds
    return {**fields, "lost": {kind: share}, "total": share, "noise": _NOISE_SHARE + queued}


def judge_run(kind: str, twin: str, folder: Path, keep: Path | None) -> None:
    """Prints a row of the table on a run, and keeps the run with its truth."""
    truth = _truth(kind, twin, folder)
    job = folder / "jobs" / _JOB_ID
    judged = judge_file(job, make_truth(truth))
    planted = f"{truth['total']:.1%}" if truth.get("lost") else "open"
    lost = "none" if judged.lost is None else f"{judged.lost:.1%}"
    wrong = "; ".join(judged.wrong.values()) or "right"
    print(f"| {kind}, {twin} | {judged.headline} | {lost} | {planted} | {wrong} |", flush=True)
    if keep is not None:
        copy = keep / f"{kind}-{twin}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.sock"))
        entry = {"name": twin, "path": f"jobs/{_JOB_ID}", "truth": truth}
        (copy / "truth.yaml").write_text(yaml.safe_dump([entry]))


@click.command()
@click.argument("kinds", nargs=-1, type=click.Choice(list(_KINDS)))
@click.option("--keep", type=click.Path(path_type=Path), help="Folder in which to keep the runs.")
def main(kinds: tuple[str, ...], keep: Path | None) -> None:
    """Print the table."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"load {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    print("| run | first line | lost | planted | judged |\n| --- | --- | --- | --- | --- |")
    for kind in kinds or _KINDS:
        for twin in _TWINS:
            with tempfile.TemporaryDirectory(prefix="lockstep-loops-", dir="/dev/shm") as folder:
                run_ranks(kind, twin, Path(folder))
                judge_run(kind, twin, Path(folder), keep)


if __name__ == "__main__":
    main()
