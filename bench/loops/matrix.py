"""Prints whom a report names when one rank is slow in each kind of loop: named, or why unknown.

``matrix.py [CELL ...]``: one rank of three takes 1.4 times as long in backward, or in forward, from
step 30 of 110. "Nobody" would be a false claim.
"""

import multiprocessing
import multiprocessing.connection
import os
import platform
import shutil
import tempfile
from pathlib import Path

import click
from cells import CELLS, SLOW_RANK
from loop_rank import train

from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.source import read_source
from lockstep_reports.recording.recording import Recording

_MAX_SECONDS = 200


def run_cell(name: str, origin: str, steps: int, root: Path) -> StepAnalysis | str:
    """Trains one loop and judges its pages; the last line of the error where it cannot be run."""
    # Forked, because torch takes longer to load than a loop to train.
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_train, args=(name, origin, steps, str(root), rank))
        for rank in range(CELLS[name].ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_MAX_SECONDS)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    if any(code != 0 for code in codes):
        errors = [path.read_text().splitlines() for path in sorted(root.glob("errors-*"))]
        lines = [line[-1] for line in errors if line and not line[-1].startswith("[")]
        return lines[0] if lines else f"exit codes {codes}"
    recording = read_source(str(root / "jobs" / "loop"), ReadOptions())
    assert isinstance(recording, Recording)
    return analyse(recording)


def _train(name: str, origin: str, steps: int, root: str, rank: int) -> None:
    with Path(root, f"errors-{rank}").open("w") as errors:
        os.dup2(errors.fileno(), 2)
        train(name, origin, steps, root, rank)


def judged(analysis: StepAnalysis) -> str:
    """Whether the verdict is right: the slow rank, or unknown with its reason."""
    verdict = analysis.verdict
    if verdict.ranks == (SLOW_RANK,):
        return "right"
    return "unknown" if verdict.kind == "unknown" else "WRONG"


def _row(name: str, origin: str, steps: int, folder: Path) -> str:
    """One line of the table."""
    result = run_cell(name, origin, steps, folder)
    if isinstance(result, str):
        return f"| {name} | {origin} | cannot be run: {result} | | | |"
    verdict = result.verdict
    ranks = f"rank {', '.join(map(str, verdict.ranks))}" if verdict.ranks else verdict.kind
    waits = ", ".join(f"{1e3 * (rank.sync_seconds or 0):.1f}" for rank in result.ranks)
    why = verdict.evidence[0] if verdict.kind == "unknown" else ""
    row = f"| {name} | {origin} | {ranks} | {verdict.phase or ''} | {waits} "
    return f"{row}| {judged(result)} {why}|"


def _write_row(name: str, origin: str, steps: int, folder: str) -> None:
    row = _row(name, origin, steps, Path(folder))
    Path(folder, "row").write_text(row)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--steps", default=110, show_default=True, help="Steps of each loop.")
@click.option("--origin", "origins", multiple=True, default=("backward", "forward"))
@click.option("--side-by-side", default=4, show_default=True, help="Loops that run side by side.")
def main(names: tuple[str, ...], steps: int, origins: tuple[str, ...], side_by_side: int) -> None:
    """Print the table."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"{side_by_side} loops side by side\n")  # fmt: skip
    print("| loop | slow in | verdict | phase | median sync, ms, by rank | |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    # Forked by this process, which has one thread and no group of its own.
    context = multiprocessing.get_context("fork")
    waiting = [(name, origin) for name in names or CELLS for origin in origins]
    running: list[tuple[Path, multiprocessing.context.ForkProcess]] = []
    while waiting or running:
        while waiting and len(running) < side_by_side:
            folder = Path(tempfile.mkdtemp(prefix="lockstep-loops-", dir="/dev/shm"))
            process = context.Process(target=_write_row, args=(*waiting.pop(0), steps, str(folder)))
            process.start()
            running.append((folder, process))
        multiprocessing.connection.wait([process.sentinel for _, process in running])
        for folder, process in [each for each in running if not each[1].is_alive()]:
            row = folder / "row"
            print(row.read_text() if row.exists() else f"| {folder} | | failed | | | |", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            running.remove((folder, process))


if __name__ == "__main__":
    main()
