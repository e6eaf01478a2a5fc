"""Who was named when one rank was slow somewhere, by some, now and then."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import click
from plan import ORIGINS, PATTERNS, PERCENTS, Trial, plan
from rich.console import Console
from rich.progress import track
from rich.table import Table
from verdicts import Judged, judge_trials

_HERE = Path(__file__).parent
_RANKS = 4
_STRATEGIES = ("ddp", "fsdp2", "pipeline")
_SOON = 20  # steps
_LARGE, _SLIGHT = 35, 12  # percent of the median step


def run(strategy: str, root: Path, trials: list[Trial]) -> list[Judged]:
    """Trains through the trials and judges what was left.

    Raises:
        ClickException: the training ended badly.
    """
    told = root / "plan.json"
    told.write_text(json.dumps([asdict(trial) for trial in trials]), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(_RANKS), str(_HERE / "loop.py")]
    ended = subprocess.run(
        [*command, strategy, str(root), str(told)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    if ended.returncode != 0:
        raise click.ClickException(f"{strategy} did not run:\n{ended.stderr[-2000:]}")
    return judge_trials(root / "jobs" / strategy / "0", trials)


def table(judged: dict[str, list[Judged]]) -> Table:
    """Right verdicts of all, with the median of the steps that they took."""
    columns = [f"{pattern} {percent} %" for pattern in PATTERNS[:1] for percent in PERCENTS]
    out = Table("strategy", "slow in", *columns, *PATTERNS[1:])
    for strategy, all_of_them in judged.items():
        for origin in ORIGINS:
            cells = defaultdict(list)
            for one in all_of_them:
                trial = one.trial
                steady = trial.pattern == "steady"
                name = f"steady {trial.percent} %" if steady else trial.pattern
                if trial.origin == origin or trial.pattern == "none":
                    cells[name].append(one)
            out.add_row(
                strategy, origin, *(_cell(cells[name]) for name in (*columns, *PATTERNS[1:]))
            )
    return out


def _cell(judged: list[Judged]) -> str:
    right = [one for one in judged if one.right]
    after = [one.after for one in right if one.after]
    took = f" in {statistics.median(after):.0f}" if after and right[0].trial.percent else ""
    return f"{len(right)}/{len(judged)}{took}"


def _sums(judged: list[Judged]) -> list[str]:
    def count(name: str, wanted: list[Judged]) -> str:
        right = sum(one.right and (one.after or _SOON + 1) <= _SOON for one in wanted)
        return f"{name}: {right} of {len(wanted)} right within {_SOON} steps"

    steady = [
        one for one in judged if one.trial.pattern == "steady" and one.trial.origin != "collective"
    ]
    return [
        count(
            f"steady, {_LARGE} % and more", [one for one in steady if one.trial.percent >= _LARGE]
        ),
        count(f"steady, {_SLIGHT} %", [one for one in steady if one.trial.percent == _SLIGHT]),
        _healthy([one for one in judged if one.trial.pattern == "none"]),
    ]


def _healthy(judged: list[Judged]) -> str:
    """Who was named when nobody was slow; and by the rule of three how often that may be."""
    named = sum(one.said.startswith(("rank", "group")) for one in judged)
    bound = (
        "" if named or not judged else f"; under {3 / len(judged):.0%} of runs with 95 % sureness"
    )
    return f"healthy: somebody was named in {named} of {len(judged)}{bound}"


@click.command()
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(_STRATEGIES))
@click.option("--repeats", default=2, show_default=True, help="Steady trials of each kind.")
@click.option("--seed", default=1, show_default=True, help="Draws order and ranks.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Every trial, here.")
def main(strategies: tuple[str, ...], repeats: int, seed: int, json_file: Path | None) -> None:
    """Print who was named, for every origin, size, pattern and strategy."""
    judged: dict[str, list[Judged]] = {}
    console = Console(stderr=True)
    for number, strategy in enumerate(
        track(strategies or _STRATEGIES, "training", console=console, transient=True)
    ):
        root = Path(tempfile.mkdtemp(prefix="lockstep-bench-", dir="/dev/shm"))
        try:
            judged[strategy] = run(strategy, root, plan(_RANKS, seed + number, repeats))
        finally:
            shutil.rmtree(root, ignore_errors=True)
    together = [one for some in judged.values() for one in some]
    out = Console(width=150)
    out.print(table(judged))
    for line in _sums(together):
        out.print(line)
    for one in together:
        if not one.right:
            out.print(f"wrong: {one.trial} -> {one.said}")
    if json_file:
        told = {name: [asdict(one) for one in some] for name, some in judged.items()}
        json_file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
