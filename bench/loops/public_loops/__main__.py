"""Prints whom reports name in loops as other people write them.

``PYTHONPATH=bench/loops python -m public_loops [LOOP ...] [--fault FAULT] [--busy 2]``:
each loop healthy, with its slow rank stopped for a fifth of the time, slow in the loader's fetch or
in the forward by half a step, killed, and with an exception, all from 30 % of its steps on.
"""

import contextlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from public_loops.cell import JOB_ID, load, run_loop
from public_loops.judging import Judged, judge_run, known_truth
from public_loops.plan import FAULTS, LOOPS

_MAX_SECONDS = 160.0
_TRUTH = "truth.yaml"
_FOLDER = click.Path(path_type=Path)
_FORK = multiprocessing.get_context("fork")


def in_own_process(work: Callable[[Path], Any]) -> Any:
    """What a function returns in a process and a folder of its own; None where it failed."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-loops-", dir="/dev/shm"))

    def write() -> None:
        os.setsid()
        try:
            (folder / "result").write_text(json.dumps(work(folder)))
        finally:
            os.killpg(0, signal.SIGKILL)  # whatever it leaves behind

    process = _FORK.Process(target=write)
    process.start()
    process.join(_MAX_SECONDS)
    process.kill()
    process.join()
    result = folder / "result"
    answer = json.loads(result.read_text()) if result.exists() else None
    shutil.rmtree(folder, ignore_errors=True)
    return answer


def judge_cell(name: str, fault: str, keep: Path | None = None) -> Judged:
    """Runs a loop with a fault and judges its report; keeps the run in a folder."""

    def work(folder: Path) -> Any:
        run = run_loop(name, fault, folder)
        if keep is not None:
            truth = known_truth(name, fault, run, folder)
            keep_run(truth, folder, keep / f"{name}-{fault}".replace(" ", "-"))
        return asdict(judge_run(name, fault, run, folder))

    answer = in_own_process(work)
    return Judged(**answer) if answer else Judged(is_right=False, words="the cell failed")


def keep_run(truth: dict[str, Any] | None, folder: Path, copy: Path) -> None:
    """Copies a run's job and its truth, for ``bench/reports/rejudge.py``."""
    shutil.rmtree(copy, ignore_errors=True)
    if truth is None:
        return
    shutil.copytree(folder / "jobs", copy / "jobs", ignore=shutil.ignore_patterns("*.sock"))
    entry = {"name": copy.name, "path": f"jobs/{JOB_ID}", "truth": truth}
    (copy / _TRUTH).write_text(json.dumps([entry]))


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes beside it that compute all the time."""

    def burn() -> None:
        while True:
            pass

    processes = [_FORK.Process(target=burn, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.kill()


def print_verdicts(
    names: tuple[str, ...], faults: tuple[str, ...], judge: Callable[[str, str], Judged]
) -> None:
    """The table of verdicts, a row a loop, with the share that is right."""
    print("| loop |", " | ".join(faults), "|")
    print("| --- |" + " --- |" * len(faults), flush=True)
    results: dict[str, list[Judged]] = {fault: [] for fault in faults}
    for name in names:
        cells = []
        for fault in faults:
            begin = time.monotonic()
            judged = judge(name, fault)
            took = f"{time.monotonic() - begin:.1f} s"
            print(f"{name}, {fault}: {judged.words}, {took}", file=sys.stderr, flush=True)
            results[fault].append(judged)
            onset = "" if judged.onset_error is None else f", {judged.onset_error:+d}"
            cells.append(f"{'right' if judged.is_right else f'**{judged.words}**'}{onset}")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    num_right = {fault: sum(judged.is_right for judged in results[fault]) for fault in faults}
    of = max(len(names), 1)
    totals = (f"{count} of {of}, {count / of:.0%}" for count in num_right.values())
    print("| right |", " | ".join(totals), "|")
    total = sum(num_right.values())
    print(f"\n{total} of {of * len(faults)} right, {total / (of * len(faults)):.1%}.")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(LOOPS)), metavar="[LOOP]...")
@click.option("--fault", "faults", multiple=True, type=click.Choice(FAULTS), default=FAULTS)
@click.option("--busy", default=0, show_default=True, help="Busy processes beside it.")
@click.option("--keep", type=_FOLDER, help="Folder in which to keep the runs.")
def main(  # click gives them by name
    names: tuple[str, ...], faults: tuple[str, ...], busy: int, keep: Path | None
) -> None:
    """Print the tables."""
    os.environ["START_METHOD"] = "fork"  # of the scripts that start their ranks themselves
    names, begin = names or tuple(LOOPS), time.monotonic()
    for name in names:
        load(name)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"{busy} busy processes beside it\n")  # fmt: skip
    with busy_processes(busy):
        print_verdicts(names, faults, partial(judge_cell, keep=keep))
    print(f"\n{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
