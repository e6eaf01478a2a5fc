"""Measures which rank is named when one is slow, by origin, size and pattern, and when none is."""

import json
import os
import platform
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from healthy import Healthy, healthy_lines, rounds, run_healthy
from plan import Course, Trial, last_step, plan, quick_plan
from rich.console import Console
from rich.progress import track
from runs import RANKS, STRATEGIES, cached, root_folder, train
from tables import result_table, sums
from verdicts import TrialResult, judge_trials, known_truths

from lockstep_cli.options import DurationRange
from lockstep_records.text.durations import format_duration

_ALL_RANK_STEPS = 1_000_000
# Of each of two layers; where more goes between ranks, a shorter device leaves steps as long.
_FORWARD_SECONDS = {"ddp": 0.003, "fsdp2": 0.002, "pipeline": 0.002}
_QUICK_RANK_STEPS = 8_000


def _trials(strategy: str, trials: list[Trial], keep: Path | None) -> list[dict[str, Any]]:
    with root_folder() as root:
        seconds = _FORWARD_SECONDS[strategy]
        course = Course(tuple(trials), last_step(trials), forward_seconds=seconds)
        attempt = train(strategy, root, course)
        if keep is not None:
            copied = shutil.ignore_patterns("*.sock")
            shutil.copytree(attempt.parent, keep / "job", ignore=copied, dirs_exist_ok=True)
            (keep / "truth.yaml").write_text(json.dumps(known_truths(trials, "job")))
        return [asdict(result) for result in judge_trials(attempt, trials, strategy)]


def _healthy(strategy: str, steps: int, device_seconds: float, keep: Path | None) -> dict[str, Any]:
    return asdict(run_healthy(strategy, steps, device_seconds, keep))


@dataclass(frozen=True, slots=True)
class Selection:
    """What to run; the fields are the options of the command."""

    strategies: tuple[str, ...]
    repeats: int
    seed: int
    rank_steps: int
    device_seconds: float
    work: Path | None
    quick: bool = False

    def parts(self) -> dict[str, Callable[[], Any]]:
        """The parts of the bench, by the name of their files in the work folder."""
        parts: dict[str, Callable[[], Any]] = {}
        for strategy in self.strategies if self.repeats else ():
            seed = self.seed + STRATEGIES.index(strategy)
            trials = quick_plan(RANKS, seed) if self.quick else plan(RANKS, seed, self.repeats)
            name = f"trials-{strategy}-{seed}-{len(trials)}"
            keep = self.work / f"{name}.pages" if self.work else None
            parts[name] = partial(_trials, strategy, trials, keep)
        for strategy in self.strategies:
            for number, steps in enumerate(rounds(strategy, self.rank_steps)):
                name = f"healthy-{strategy}-{number}-{steps}-{format_duration(self.device_seconds)}"
                keep = self.work / f"{name}.pages" if self.work else None
                parts[name] = partial(_healthy, strategy, steps, self.device_seconds, keep)
        return parts


def _timed(produce: Callable[[], Any]) -> dict[str, Any]:
    began = time.monotonic()
    return {"result": produce(), "wall_seconds": time.monotonic() - began}


def _print(out: Console, results: dict[str, Any], seed: int) -> None:
    trial_results: dict[str, list[TrialResult]] = {}
    healthy = []
    minutes: dict[str, float] = defaultdict(float)
    for name, part in results.items():
        kind, strategy, *_ = name.split("-")
        minutes[f"{kind} {strategy}"] += part["wall_seconds"] / 60
        values = part["result"]
        if kind == "trials":
            trial_results[strategy] = [
                TrialResult(**result | {"trial": Trial(**result["trial"])}) for result in values
            ]
        else:
            healthy.append(Healthy(**values))
    out.print(
        f"{platform.machine()}, {os.cpu_count()} cores, {RANKS} ranks over gloo, seed {seed};"
    )
    out.print("each layer has a weight or four and a device that is a sleep, its messages are real")
    if trial_results:
        out.print(result_table(trial_results))
        out.print("\n".join(sums([result for rows in trial_results.values() for result in rows])))
    out.print("\n".join(healthy_lines(healthy)))
    parts = ", ".join(f"{name} {minutes_taken:.1f}" for name, minutes_taken in minutes.items())
    out.print(f"minutes: {parts}; in all {sum(minutes.values()):.1f}")


@click.command()
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES))
@click.option(
    "--repeats", default=2, show_default=True, help="Steady trials of each kind; 0 for no trials."
)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    help="Seed of the order of trials and of the slow ranks.",
)
@click.option(
    "--healthy-steps",
    "rank_steps",
    default=_ALL_RANK_STEPS,
    show_default=True,
    help="Rank-steps of healthy runs, over all strategies; 0 for none.",
)
@click.option(
    "--device-time",
    "device_seconds",
    type=DurationRange(),
    default="8ms",
    show_default=True,
    help="Simulated device time of a healthy DDP step; other strategies take twice as long.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for results and recorded trials; a part whose result is there is not run again.",
)
@click.option(
    "--quick", is_flag=True, help="Six trials of DDP and 8,000 rank-steps: half a minute."
)
def main(
    *,
    strategies: tuple[str, ...],
    repeats: int,
    seed: int,
    rank_steps: int,
    device_seconds: float,
    work: Path | None,
    quick: bool,
) -> None:
    """Print which ranks are named, by origin, size, pattern and strategy, and in healthy runs."""
    if quick:
        strategies, rank_steps = ("ddp",), _QUICK_RANK_STEPS
    selection = Selection(
        strategies or STRATEGIES, repeats, seed, rank_steps, device_seconds, work, quick
    )
    parts = selection.parts()
    console = Console(stderr=True)
    results = {}
    for number, name in enumerate(track(parts, "training", console=console, transient=True), 1):
        console.log(f"part {number} of {len(parts)}: {name}")
        results[name] = cached(
            work / f"{name}.json" if work else None, partial(_timed, parts[name])
        )
        console.log(f"{name}: {results[name]['wall_seconds']:.0f} s")
    _print(Console(width=190), results, seed)


if __name__ == "__main__":
    main()
