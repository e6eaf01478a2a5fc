"""Prints how far from the truth episodes begin, by kind of fault and its share of the step.

``onset.py --seed N [--runs N] [KIND ...]``: jobs by the clock (``timed_job.py`` of the tests), in
which one rank turns slow at a random step. An onset is right within 5 steps or 2 % of the run.
"""

import os
import platform
import runpy
from pathlib import Path
from typing import Any

import click
import numpy as np

from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge

_GENERATOR = Path(__file__).resolve().parents[2] / "tests" / "reports" / "search" / "timed_job.py"
TimedJob: Any = runpy.run_path(str(_GENERATOR), run_name="timed_job")["TimedJob"]
_KINDS: dict[str, list[dict[str, Any]]] = {
    "phase": [{"phase": "forward"}, {"phase": "optimizer"}],
    "sparse": [{"every": 5}, {"every": 10}, {"every": 20}],
    "stopped": [{"step_seconds": 0.007}, {"step_seconds": 0.05}, {"step_seconds": 0.9}],
    "fetch": [{"workers": 2}, {"workers": 4}],
    "healthy": [{}, *({"sleeps": s, "step_seconds": t} for s in (0.02, 0.1) for t in (0.007, 0.1))],
}
_SHARES = (0.1, 0.2, 0.5)
_PAUSES = (0.0, 0.02, 0.06)
_MIN_TOLERANCE_STEPS, _TOLERANCE_RATIO = 5, 0.02


def _row(job: dict[str, Any], runs: int, seed: int) -> str:
    errors: list[int] = []
    right = within = others = stopped = 0
    for run in range(runs):
        draw = np.random.default_rng([seed, run])
        num_steps = int(draw.choice([300, 600, 1500]))
        begin, rank = int(draw.integers(60, num_steps - 150)), int(draw.integers(4))
        timed = TimedJob(
            **job, rank=rank, num_steps=num_steps, from_step=begin, seed=int(draw.integers(1 << 31))
        ).steps()
        verdict, episodes = judge(timed, score(timed))
        if job["kind"] == "healthy":
            right += not verdict.ranks
            continue
        right += verdict.ranks == (rank,)
        others += bool(set(verdict.ranks) - {rank})
        stopped += verdict.cause == "process_stopped"
        starts = [episode.start_step for episode in episodes if rank in episode.ranks]
        if starts:
            errors.append(min(starts) - begin)
            tolerance = max(_MIN_TOLERANCE_STEPS, _TOLERANCE_RATIO * num_steps)
            within += abs(errors[-1]) <= tolerance
    spread = (
        "" if not errors else f"{int(np.median(errors)):+d}, {min(errors):+d} to {max(errors):+d}"
    )
    options = ", ".join(f"{name} {value}" for name, value in job.items() if name != "kind")
    named = f"{right}/{runs} | {others} | {stopped}"
    return f"| {job['kind']} | {options} | {named} | {within}/{runs} | {spread} |"


@click.command()
@click.argument("kinds", nargs=-1, type=click.Choice(list(_KINDS)))
@click.option("--seed", default=1, show_default=True, help="Seed of the generator.")
@click.option("--runs", default=20, show_default=True, help="Runs of each row.")
def main(kinds: tuple[str, ...], seed: int, runs: int) -> None:
    """Print the table."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"seed {seed}\n")  # fmt: skip
    print(
        "| fault | | named | others | stood still | onset right | error in steps: median, range |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind in kinds or _KINDS:
        for options in _KINDS[kind]:
            for share in _SHARES if kind != "healthy" else (0.0,):
                for pauses in _PAUSES:
                    job = {"kind": kind, "share": share, **options, "pauses": pauses}
                    print(_row(job, runs, seed), flush=True)


if __name__ == "__main__":
    main()
