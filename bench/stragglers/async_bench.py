"""Measures who is named on a device that runs behind the host, by its clock and the host's."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
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
from rich.table import Table
from runs import HERE, RANKS, STRATEGIES, Launch, cached, root_folder, train
from tables import trial_text
from verdicts import PHASES, TrialResult, judge_trials, verdict_of, verdict_text, window

from lockstep_catalogue.vocabulary import CLOCKS
from lockstep_reports.cost import goodput
from lockstep_reports.readers.pages import read_attempt
from lockstep_reports.recording.steps import Steps

_LARGE, _SLIGHT = 35, PERCENTS[-1]
_SOON = 20  # steps
_STEPS = {"steady": 20, "rotating": 40, "none": 20}
_FORWARD_SECONDS = {"ddp": 0.003, "fsdp2": 0.003, "pipeline": 0.003}
_WINDOW_STEPS = 1000  # of a healthy run, each judged by itself
_LAUNCH = Launch(path=str(HERE.parent), script="async_loop.py")


def _cells() -> Iterator[tuple[str, int, str]]:
    for origin in ORIGINS[:-1]:
        for percent in PERCENTS:
            yield from [(origin, percent, "steady")] * (5 if percent == _SLIGHT else 2)
        yield origin, _LARGE, "rotating"
    for origin in ("collective", "hidden", "launches"):
        yield from [(origin, 60, "steady")] * 2
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


def _statement(steps: Steps, root: Path) -> dict[str, float]:
    """Seconds by state, and those that the devices were programmed to work."""
    programs = [
        json.loads((root / PROGRAM_FILE.format(rank=rank)).read_text(encoding="utf-8"))
        for rank in range(RANKS)
    ]
    states = goodput(steps, ()).seconds
    return states | {"programmed": sum(program["kernel_seconds"] for program in programs)}


def _trials(strategy: str, seed: int) -> dict[str, Any]:
    trials = _plan(seed)
    with root_folder() as root:
        course = Course(
            tuple(trials), last_step(trials), forward_seconds=_FORWARD_SECONDS[strategy]
        )
        train(strategy, root, course, _LAUNCH)
        jobs = {"device": strategy, "host": HOST_JOB}
        results = {
            clock: [
                asdict(result)
                for result in judge_trials(root / "jobs" / job / "0", trials, strategy)
            ]
            for clock, job in jobs.items()
        }
        steps = read_attempt(root / "jobs" / strategy / "0")
        return {"trials": results, "statement": _statement(steps, root)}


def _healthy(strategy: str, num_steps: int) -> dict[str, Any]:
    with root_folder() as root:
        course = Course((), num_steps, layers=1, forward_seconds=0.002)
        steps = read_attempt(train(strategy, root, course, _LAUNCH))
        named = {}
        for first in range(0, num_steps - _WINDOW_STEPS + 1, _WINDOW_STEPS):
            verdict = verdict_of(window(steps, first, first + _WINDOW_STEPS))
            if verdict.kind in {"rank", "group"}:
                named[str(first)] = verdict_text(verdict)
        timed = int(np.isfinite(steps.seconds).sum())
        return {"named": named, "rank_steps": timed, "statement": _statement(steps, root)}


def _sum_text(results: list[TrialResult], name: str) -> str:
    right = sum(result.right and (result.num_steps or _SOON + 1) <= _SOON for result in results)
    return f"{name}: {right} of {len(results)} right within {_SOON} steps"


def _sums(results: list[TrialResult]) -> Iterator[str]:
    steady = [r for r in results if r.trial.pattern == "steady" and r.trial.origin in ORIGINS[:-1]]
    yield _sum_text([r for r in steady if r.trial.percent >= _LARGE], f"{_LARGE} % and more")
    yield _sum_text([r for r in steady if r.trial.percent == _SLIGHT], f"{_SLIGHT} %")
    others: dict[str, list[TrialResult]] = defaultdict(list)
    for result in results:
        if result.trial.pattern != "steady":
            others[result.trial.pattern].append(result)
        elif result.trial.origin not in ORIGINS[:-1]:
            others[result.trial.origin].append(result)
    for kind, of_kind in others.items():
        expected = "rank, forward" if kind == "launch" else "nobody"
        yield f"{kind} ({expected}): {sum(r.right for r in of_kind)} of {len(of_kind)} right"


def _statement_lines(results: Mapping[str, Any]) -> Iterator[str]:
    for name, part in results.items():
        states = part["statement"]
        programmed = states["programmed"]
        covered = sum(states.values()) - programmed - states["startup"]
        shares = ", ".join(
            f"{state} {seconds / covered:.1%}"
            for state, seconds in states.items()
            if seconds and state not in {"programmed", "startup"}
        )
        error = (states["productive"] - programmed) / covered
        yield f"{name}: {shares}; productive against the program {error:+.2%} of all time"


def _print(out: Console, results: Mapping[str, Any]) -> None:
    table = Table("clock", "strategy", "slow in", "right of all")
    by_clock: dict[str, list[TrialResult]] = {clock: [] for clock in reversed(CLOCKS)}
    for name, part in results.items():
        for clock, values in part.get("trials", {}).items():
            found = [TrialResult(**value | {"trial": Trial(**value["trial"])}) for value in values]
            by_clock[clock] += found
            for origin in dict.fromkeys((*PHASES, *(r.trial.origin for r in found))):
                of_origin = [r for r in found if r.trial.origin == origin]
                right = sum(r.right for r in of_origin)
                table.add_row(clock, name.split("-")[1], origin, f"{right}/{len(of_origin)}")
    out.print(table)
    for clock, found in by_clock.items():
        out.print(f"by the {clock}'s clock:", *(f"  {line}" for line in _sums(found)), sep="\n")
        if clock == "device":
            for r in found:
                if not r.right or (r.trial.origin in PHASES and (r.num_steps or 0) > _SOON):
                    answer = f"{r.answer}, right in {r.num_steps} steps"
                    out.print(f"  wrong or late: {r.strategy}, {trial_text(r.trial)}: {answer}")
    healthy = [part for name, part in results.items() if name.startswith("healthy")]
    if healthy:
        rank_steps = sum(part["rank_steps"] for part in healthy)
        named = [answer for part in healthy for answer in part["named"].values()]
        out.print(f"healthy: {len(named)} windows name somebody in {rank_steps} rank-steps {named}")
    out.print("\n".join(_statement_lines(results)))


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
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), help="Folder of results.")
def main(*, strategies: tuple[str, ...], seed: int, rank_steps: int, work: Path | None) -> None:
    """Print whom the report names on the asynchronous device, by either clock."""
    parts = {
        f"trials-{strategy}-{seed}": partial(_trials, strategy, seed + number)
        for number, strategy in enumerate(strategies or STRATEGIES)
    }
    if rank_steps:
        parts[f"healthy-ddp-{rank_steps}"] = partial(_healthy, "ddp", rank_steps // RANKS)
    console, results = Console(stderr=True), {}
    for name in track(parts, "training", console=console, transient=True):
        console.log(name)
        results[name] = cached(work / f"{name}.json" if work else None, parts[name])
    _print(Console(width=150), results)


if __name__ == "__main__":
    main()
