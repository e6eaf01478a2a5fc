"""Who was named when one rank was slow somewhere, by some, now and then; and when nobody was."""

import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from healthy import Healthy, rounds, run_healthy, say
from peers import Named, peer_trials, run_peers
from plan import Course, Trial, last_step, plan, quick_plan
from rich.console import Console
from rich.progress import track
from runs import RANKS, STRATEGIES, kept, root_folder, train
from tables import peer_sums, sums, whole_table
from verdicts import Judged, judge_trials

_ALL_RANK_STEPS = 1_000_000
# Of each of two layers; where more goes between ranks, a shorter device leaves steps as long.
_FORWARD_SECONDS = {"ddp": 0.003, "fsdp2": 0.002, "pipeline": 0.002}
_QUICK_RANK_STEPS = 8_000


def _trials(strategy: str, trials: list[Trial]) -> list[dict[str, Any]]:
    with root_folder() as root:
        seconds = _FORWARD_SECONDS[strategy]
        course = Course(tuple(trials), last_step(trials), forward_seconds=seconds)
        attempt = train(strategy, root, course)
        return [asdict(one) for one in judge_trials(attempt, trials, strategy)]


def _peers(strategy: str, trial: Trial, peers: Path) -> dict[str, Any]:
    return asdict(run_peers(strategy, trial, peers))


def _healthy(strategy: str, steps: int, device_seconds: float, keep: Path | None) -> dict[str, Any]:
    return asdict(run_healthy(strategy, steps, device_seconds, keep))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to run; the fields are the options of the command."""

    strategies: tuple[str, ...]
    repeats: int
    seed: int
    rank_steps: int
    device_ms: float
    peers: Path | None
    work: Path | None
    quick: bool = False

    def parts(self) -> dict[str, Callable[[], Any]]:
        """What there is to do, by the name of its file in the work folder."""
        parts: dict[str, Callable[[], Any]] = {}
        for strategy in self.strategies if self.repeats else ():
            seed = self.seed + STRATEGIES.index(strategy)
            trials = quick_plan(RANKS, seed) if self.quick else plan(RANKS, seed, self.repeats)
            parts[f"trials-{strategy}-{seed}-{len(trials)}"] = partial(_trials, strategy, trials)
        for strategy in self.strategies if self.peers else ():
            for number, trial in enumerate(peer_trials(strategy)):
                parts[f"peers-{strategy}-{number}"] = partial(
                    _peers, strategy, trial, Path(self.peers or "").absolute()
                )
        for strategy in self.strategies:
            for number, steps in enumerate(rounds(strategy, self.rank_steps)):
                name = f"healthy-{strategy}-{number}-{steps}-{self.device_ms:g}"
                keep = self.work / f"{name}.pages" if self.work else None
                parts[name] = partial(_healthy, strategy, steps, self.device_ms / 1e3, keep)
        return parts


def _timed(make: Callable[[], Any]) -> dict[str, Any]:
    begun = time.monotonic()
    return {"told": make(), "wall_seconds": time.monotonic() - begun}


def _print(out: Console, made: dict[str, Any], seed: int) -> None:
    judged: dict[str, list[Judged]] = {}
    named, healthy = [], []
    minutes: dict[str, float] = defaultdict(float)
    for name, part in made.items():
        kind, strategy, *_ = name.split("-")
        minutes[f"{kind} {strategy}"] += part["wall_seconds"] / 60
        told = part["told"]
        if kind == "trials":
            judged[strategy] = [Judged(**one | {"trial": Trial(**one["trial"])}) for one in told]
        elif kind == "peers":
            named.append(Named(**told | {"trial": Trial(**told["trial"])}))
        else:
            healthy.append(Healthy(**told))
    out.print(
        f"{platform.machine()}, {os.cpu_count()} cores, {RANKS} ranks over gloo, seed {seed};"
    )
    out.print("each layer has a weight or four and a device that is a sleep, its messages are real")
    if judged or named:
        out.print(whole_table(judged, named))
    if judged:
        out.print("\n".join(sums([one for rows in judged.values() for one in rows])))
    out.print("\n".join([*peer_sums(named), *say(healthy)]))
    parts = ", ".join(f"{name} {took:.1f}" for name, took in minutes.items())
    out.print(f"minutes: {parts}; in all {sum(minutes.values()):.1f}")


@click.command()
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES))
@click.option(
    "--repeats", default=2, show_default=True, help="Steady trials of each kind; 0 for no trials."
)
@click.option("--seed", default=1, show_default=True, help="Draws order and ranks.")
@click.option(
    "--healthy-steps",
    "rank_steps",
    default=_ALL_RANK_STEPS,
    show_default=True,
    help="Rank-steps of healthy runs, over all strategies; 0 for none.",
)
@click.option(
    "--device-ms",
    default=8.0,
    show_default=True,
    help="What a device takes of each healthy step of DDP; twice that of the others'.",
)
@click.option(
    "--peers",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder that holds TraceML and NVRx; left out, they do not run.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the verdicts of each part here, and do not run again what is here.",
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
    device_ms: float,
    peers: Path | None,
    work: Path | None,
    quick: bool,
) -> None:
    """Print who was named, for every origin, size, pattern and strategy; then in healthy runs."""
    if quick:
        strategies, rank_steps = ("ddp",), _QUICK_RANK_STEPS
    wanted = Wanted(
        strategies or STRATEGIES, repeats, seed, rank_steps, device_ms, peers, work, quick
    )
    parts = wanted.parts()
    console = Console(stderr=True)
    made = {}
    for name in track(parts, "training", console=console, transient=True):
        made[name] = kept(work / f"{name}.json" if work else None, partial(_timed, parts[name]))
        console.log(f"{name}: {made[name]['wall_seconds']:.0f} s")
    _print(Console(width=190), made, seed)


if __name__ == "__main__":
    main()
