"""Measures who is named on a device that runs behind the host, by its clock and the host's."""

import json
import random
from collections.abc import Callable, Iterator
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
from rich.progress import track
from runs import HERE, RANKS, STRATEGIES, Launch, cached, root_folder, train
from verdicts import judge_trials, verdict_of, verdict_text, window

from lockstep_reports.cost import goodput
from lockstep_reports.readers.pages import read_attempt
from lockstep_reports.recording.steps import Steps

_LARGE, _SLIGHT = 35, PERCENTS[-1]
_STEPS = {"steady": 20, "rotating": 40, "none": 20}
# Long against the milliseconds by which a thread wakes late where ranks share few cores.
_FORWARD_SECONDS = 0.01
_COMPARED_SECONDS = 0.006
_MAX_EXPOSED = 3  # steps of a trial; a loader that the device waits for more often is not hidden
_WINDOW_STEPS = 1000  # of a healthy run, each judged by itself
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


def _statement(steps: Steps, root: Path) -> dict[str, float]:
    """Seconds by state, and those that the devices were programmed to work."""
    programs = _programs(root)
    states = goodput(steps, ()).seconds
    return states | {"programmed": sum(program["kernel_seconds"] for program in programs)}


def _trials(strategy: str, seed: int) -> dict[str, Any]:
    trials = _plan(seed)
    with root_folder() as root:
        course = Course(tuple(trials), last_step(trials), forward_seconds=_FORWARD_SECONDS)
        train(strategy, root, course, LAUNCH)
        jobs = {"device": strategy, "host": HOST_JOB}
        results = {
            clock: [
                asdict(result)
                for result in judge_trials(root / "jobs" / job / "0", trials, strategy)
            ]
            for clock, job in jobs.items()
        }
        steps = read_attempt(root / "jobs" / strategy / "0")
        return {
            "trials": results,
            "exposed": _exposed(trials, root),
            "statement": _statement(steps, root),
        }


def _healthy(strategy: str, num_steps: int) -> dict[str, Any]:
    with root_folder() as root:
        course = Course((), num_steps, layers=1, forward_seconds=0.002)
        steps = read_attempt(train(strategy, root, course, LAUNCH))
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


@click.command()
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES))
@click.option("--seed", default=1, show_default=True, help="Seed of trials and slow ranks.")
@click.option(
    "--healthy-steps",
    "rank_steps",
    default=100_000,
    show_default=True,
    help="Rank-steps of a healthy DDP run; 0 for none.",
)
@click.option(
    "--peers",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder in which TraceML and NVRx are installed; without it they do not run.",
)
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), help="Folder of results.")
def main(
    *,
    strategies: tuple[str, ...],
    seed: int,
    rank_steps: int,
    peers: Path | None,
    work: Path | None,
) -> None:
    """Print whom the report names on the asynchronous device, by either clock."""
    parts: dict[str, Callable[[], Any]] = {
        f"trials-{strategy}-{seed}": partial(_trials, strategy, seed + number)
        for number, strategy in enumerate(strategies or STRATEGIES)
    }
    if rank_steps:
        parts[f"healthy-ddp-{rank_steps}"] = partial(_healthy, "ddp", rank_steps // RANKS)
    for strategy in strategies or STRATEGIES if peers else ():
        for number, trial in enumerate(competitor_trials(strategy)):
            run = partial(_competitors, strategy, trial, Path(peers or "").absolute())
            parts[f"peers-{strategy}-{number}"] = run
    console, results = Console(stderr=True), {}
    for number, name in enumerate(track(parts, "training", console=console, transient=True), 1):
        console.log(f"part {number} of {len(parts)}: {name}")
        results[name] = cached(work / f"{name}.json" if work else None, parts[name])
    print_results(Console(width=190), results)


if __name__ == "__main__":
    main()
