"""Measures who is named on a device that runs behind the host, by its clock and the host's."""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from async_tables import print_results
from competitors import competitor_trials, run_competitors
from plan import (
    HEALTHY,
    HOST_JOB,
    ORIGINS,
    PERCENTS,
    PROGRAM_FILE,
    WARM_UP,
    Course,
    Trial,
    last_step,
)
from rich.console import Console
from runs import HERE, RANKS, STRATEGIES, Launch, cached, root_folder, train
from verdicts import judge_trials, verdict_of, verdict_text, window

from lockstep_records.files.jobs import page_in
from lockstep_records.page.layout import ROW_FLAGS
from lockstep_records.page.reader import read_page, read_rows
from lockstep_reports.analysis.cost import goodput
from lockstep_reports.readers.pages import read_pages
from lockstep_reports.recording.steps import Steps

_LARGE, _SLIGHT = 35, PERCENTS[-1]
_STEPS = {"steady": 20, "rotating": 40, "none": 20}
# Long against the milliseconds by which a thread wakes late where ranks share few cores.
_FORWARD_SECONDS = 0.01
_COMPARED_SECONDS = 0.006
_MAX_EXPOSED = 3  # steps of a trial; a loader that the device waits for more often is not hidden
_WINDOW_STEPS = 1000  # of a healthy run, each judged by itself
_LOSS_EVERY = 10  # steps of a healthy run
_PART_RANK_STEPS = 20_000  # of a healthy run, so that it can be continued
_BY_DEVICE = 1 << ROW_FLAGS.index("device")
LAUNCH = Launch(path=str(HERE.parent), script="async_loop.py")


def _cells() -> Iterator[tuple[str, int, str]]:
    for origin in ORIGINS[:-1]:
        for percent in PERCENTS:
            yield from [(origin, percent, "steady")] * (5 if percent == _SLIGHT else 2)
        yield origin, _LARGE, "rotating"
    for origin in ("collective", "hidden", "launches"):
        yield from [(origin, 60, "steady")] * (4 if origin == "hidden" else 2)
    yield from (("launch", percent, "steady") for percent in (250, 60, 35))
    yield from [("loader", 0, "none")] * 4


def _plan(seed: int) -> list[Trial]:
    draw, cells, trials, start = random.Random(seed), list(_cells()), [], WARM_UP
    draw.shuffle(cells)
    for origin, percent, pattern in cells:
        start += HEALTHY
        steps = _STEPS[pattern]
        trials.append(Trial(origin, percent, pattern, draw.randrange(RANKS), start, steps))
        start += steps
    return trials


def _programs(root: Path) -> list[dict[str, Any]]:
    """What each rank left of what it did."""
    files = (root / PROGRAM_FILE.format(rank=rank) for rank in range(RANKS))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _exposed(trials: list[Trial], root: Path) -> list[int]:
    """Starts of trials whose hidden loader was not: the device had to wait for it."""
    steps = [program["exposed_steps"] for program in _programs(root)]
    return [
        trial.start
        for trial in trials
        if trial.origin == "hidden"
        and sum(0 <= step - trial.start < trial.steps for step in steps[trial.rank]) > _MAX_EXPOSED
    ]


def _alignment_errors(attempt: Path, root: Path) -> list[float]:
    """Median, 99th percentile and largest error of a step's beginning by its row, in seconds."""
    errors = []
    for rank, program in enumerate(_programs(root)):
        ends_ns = program["ends_ns"]
        errors += [
            abs(row["start_ns"] - ends_ns[row["step"] - 1]) * 1e-9
            for row in read_rows(read_page(page_in(attempt, rank)))
            if row["flags"] & _BY_DEVICE and 0 < row["step"] <= len(ends_ns)
        ]
    return [float(value) for value in np.quantile(errors, (0.5, 0.99, 1.0))]


def _statement(steps: Steps, root: Path) -> dict[str, float]:
    """Seconds by state, and those that the devices were programmed to work."""
    programs = _programs(root)
    states = goodput(steps, ()).seconds
    return states | {"programmed": sum(program["kernel_seconds"] for program in programs)}


def _trials(strategy: str, seed: int) -> dict[str, Any]:
    trials = _plan(seed)
    with root_folder() as root:
        course = Course(
            tuple(trials), last_step(trials), forward_seconds=_FORWARD_SECONDS, seed=seed
        )
        train(strategy, root, course, LAUNCH)
        jobs = {"device": strategy, "host": HOST_JOB}
        results = {
            clock: [
                asdict(result)
                for result in judge_trials(root / "jobs" / job / "0", trials, strategy)
            ]
            for clock, job in jobs.items()
        }
        steps = read_pages(root / "jobs" / strategy / "0")[0]
        return {
            "trials": results,
            "exposed": _exposed(trials, root),
            "alignment": _alignment_errors(root / "jobs" / strategy / "0", root),
            "statement": _statement(steps, root),
        }


def _healthy(strategy: str, num_steps: int, seed: int) -> dict[str, Any]:
    with root_folder() as root:
        # Ranks that all wake at the end of each step hold each other up where they share cores.
        course = Course(
            (), num_steps, layers=1, forward_seconds=0.004, seed=seed, loss_every=_LOSS_EVERY
        )
        steps = read_pages(train(strategy, root, course, LAUNCH))[0]
        named = {}
        for first in range(0, num_steps - _WINDOW_STEPS + 1, _WINDOW_STEPS):
            verdict = verdict_of(window(steps, first, first + _WINDOW_STEPS))
            if verdict.kind in {"rank", "group"}:
                named[str(first)] = verdict_text(verdict)
        timed = int(np.isfinite(steps.seconds).sum())
        return {"named": named, "rank_steps": timed, "statement": _statement(steps, root)}


def _competitors(strategy: str, trial: Trial, peers: Path) -> dict[str, Any]:
    seconds = _COMPARED_SECONDS
    return asdict(run_competitors(strategy, trial, peers, LAUNCH.script, forward_seconds=seconds))


def _parts(
    strategies: tuple[str, ...], seed: int, rank_steps: int, peers: Path | None
) -> dict[str, Callable[[], Any]]:
    """The parts of the bench, by the name of their files in the work folder."""
    parts: dict[str, Callable[[], Any]] = {
        f"trials-{strategy}-{seed}": partial(_trials, strategy, seed + STRATEGIES.index(strategy))
        for strategy in strategies
    }
    for number in range(-(-rank_steps // _PART_RANK_STEPS)):
        name = f"healthy-ddp-{seed}-{number}"
        parts[name] = partial(_healthy, "ddp", _PART_RANK_STEPS // RANKS, seed + number)
    for strategy in strategies if peers else ():
        for number, trial in enumerate(competitor_trials(strategy)):
            run = partial(_competitors, strategy, trial, Path(peers or "").absolute())
            parts[f"peers-{strategy}-{number}"] = run
    return parts


def _must_wait(name: str, running: Collection[str]) -> bool:
    """Whether a part needs the port of one that runs: TraceML's launcher always takes the same."""
    return name.startswith("peers") and any(other.startswith("peers") for other in running)


def _run_apart(files: dict[str, Path], jobs: int, console: Console) -> None:
    """Runs parts in processes of their own, so many at a time; each writes its file."""
    waiting = [name for name, file in files.items() if not file.is_file()]
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = next((name for name in waiting if not _must_wait(name, running)), None)
                if name is None:
                    break
                waiting.remove(name)
                command = [sys.executable, *sys.argv, "--work", str(files[name].parent)]
                running[name] = subprocess.Popen([*command, "--part", name])
                console.log(f"{name} begins; {len(waiting)} of {len(files)} parts wait")
            time.sleep(1.0)
            for name in [name for name, part in running.items() if part.poll() is not None]:
                if running.pop(name).returncode:
                    raise click.ClickException(f"part {name} failed; see above")
                console.log(f"{name} is done")
    finally:
        for part in running.values():
            part.terminate()
            part.wait()


@click.command()
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES))
@click.option("--seed", default=1, show_default=True, help="Seed of trials and slow ranks.")
@click.option(
    "--healthy-steps",
    "rank_steps",
    default=100_000,
    show_default=True,
    help="Rank-steps of healthy DDP runs, rounded up to 20,000; 0 for none.",
)
@click.option(
    "--peers",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder in which TraceML and NVRx are installed; without it they do not run.",
)
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), help="Folder of results.")
@click.option("--jobs", default=3, show_default=True, help="Parts that run at a time.")
@click.option("--part", hidden=True, help="The one part to run, without printing.")
def main(
    *,
    strategies: tuple[str, ...],
    seed: int,
    rank_steps: int,
    peers: Path | None,
    work: Path | None,
    jobs: int,
    part: str | None,
) -> None:
    """Print whom the report names on the asynchronous device, by either clock."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave no ranks behind
    parts = _parts(strategies or STRATEGIES, seed, rank_steps, peers)
    if part is not None:
        cached((work or Path()) / f"{part}.json", parts[part])
        return
    with tempfile.TemporaryDirectory() as folder:
        files = {name: (work or Path(folder)).absolute() / f"{name}.json" for name in parts}
        _run_apart(files, jobs, Console(stderr=True))
        results = {name: json.loads(file.read_text("utf-8")) for name, file in files.items()}
    print_results(Console(width=190), results)


if __name__ == "__main__":
    main()
