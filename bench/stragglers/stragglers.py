"""Who was named when one rank was slow somewhere, by some, now and then; and when nobody was."""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from healthy import Healthy, rounds, run_healthy, say
from peers import Named, peer_trials, run_peers
from plan import Course, Trial, last_step, plan
from rich.console import Console
from rich.progress import track
from runs import RANKS, STRATEGIES, kept, root_folder, train
from tables import peers_table, sums, trials_table
from verdicts import Judged, judge_trials

_ALL_RANK_STEPS = 1_000_000


def _trials(strategy: str, seed: int, repeats: int) -> list[dict[str, Any]]:
    trials = plan(RANKS, seed, repeats)
    with root_folder() as root:
        attempt = train(strategy, root, Course(tuple(trials), last_step(trials)))
        return [asdict(one) for one in judge_trials(attempt, trials, strategy)]


def _peers(trial: Trial, peers: Path) -> dict[str, Any]:
    return asdict(run_peers(trial, peers))


def _healthy(strategy: str, steps: int, device_seconds: float) -> dict[str, Any]:
    return asdict(run_healthy(strategy, steps, device_seconds))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to run; the fields are the options of the command."""

    strategies: tuple[str, ...]
    repeats: int
    seed: int
    rank_steps: int
    device_ms: float
    peers: Path | None

    def parts(self) -> dict[str, Callable[[], Any]]:
        """What there is to do, by the name of its file in the work folder."""
        parts: dict[str, Callable[[], Any]] = {}
        for number, strategy in enumerate(self.strategies if self.repeats else ()):
            seed = self.seed + number
            parts[f"trials-{strategy}-{seed}-{self.repeats}"] = partial(
                _trials, strategy, seed, self.repeats
            )
        if self.peers:
            for number, trial in enumerate(peer_trials()):
                parts[f"peers-{number}"] = partial(_peers, trial, self.peers.absolute())
        for strategy in self.strategies:
            for number, steps in enumerate(rounds(strategy, self.rank_steps)):
                parts[f"healthy-{strategy}-{number}-{steps}-{self.device_ms:g}"] = partial(
                    _healthy, strategy, steps, self.device_ms / 1e3
                )
        return parts


def _print(out: Console, made: dict[str, Any]) -> None:
    judged: dict[str, list[Judged]] = {}
    named, healthy = [], []
    for name, told in made.items():
        if name.startswith("trials"):
            rows = [Judged(**one | {"trial": Trial(**one["trial"])}) for one in told]
            judged[rows[0].strategy] = rows
        elif name.startswith("peers"):
            named.append(Named(**told | {"trial": Trial(**told["trial"])}))
        else:
            healthy.append(Healthy(**told))
    out.print(f"{platform.machine()}, {os.cpu_count()} cores, {RANKS} ranks over gloo")
    if judged:
        out.print(trials_table(judged))
        for line in sums([one for rows in judged.values() for one in rows]):
            out.print(line)
    if named:
        out.print(peers_table(named))
    for line in say(healthy):
        out.print(line)


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
    default=1.8,
    show_default=True,
    help="What a device takes of each healthy step; longer where ranks outnumber the cores.",
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
def main(
    *,
    strategies: tuple[str, ...],
    repeats: int,
    seed: int,
    rank_steps: int,
    device_ms: float,
    peers: Path | None,
    work: Path | None,
) -> None:
    """Print who was named, for every origin, size, pattern and strategy; then in healthy runs."""
    wanted = Wanted(strategies or STRATEGIES, repeats, seed, rank_steps, device_ms, peers)
    parts = wanted.parts()
    console = Console(stderr=True)
    made = {}
    for name in track(parts, "training", console=console, transient=True):
        console.log(name)
        made[name] = kept(work / f"{name}.json" if work else None, parts[name])
    _print(Console(width=150), made)


if __name__ == "__main__":
    main()
