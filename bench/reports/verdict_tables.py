"""Prints confusion tables by generator, and false alarms on nulls, with seeds drawn anew.

``verdict_tables.py --seed N [--runs N] [nulls|workers|pipelines ...]``: the generators are
those of the tests (``tests/reports``); no recording has a part in it.
"""

import os
import platform
import runpy
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.parquet as pq

from lockstep_reports.readers.traces import read_trace
from lockstep_reports.recording.steps import timed_steps
from lockstep_reports.verdict.own_times import judge_own_times
from lockstep_reports.verdict.verdict import Verdict
from lockstep_reports.whatif.verdict import replay_trace

_GENERATORS = Path(__file__).resolve().parents[2] / "tests" / "reports"


def _generator(module: str, *names: str) -> list[Any]:
    namespace = runpy.run_path(str(_GENERATORS / f"{module}.py"))
    return [namespace[name] for name in names]


(SyntheticTrace,) = _generator("synthetic_trace", "SyntheticTrace")
Fault, WorkerTable = _generator("verdict/worker_tables", "Fault", "WorkerTable")
_SHAPES = ((10, 250), (4, 1000), (32, 400))
_NOISES = ("normal", "t3", "lognormal", "hiccups")


def _print_row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def _print_header(*cells: str) -> None:
    _print_row(*cells)
    _print_row(*("---" for _ in cells))


def _worker_verdict(table: Any) -> Verdict:
    seconds = table.seconds()
    steps = timed_steps("job", list(range(len(seconds))), np.arange(seconds.shape[1]), seconds)
    return judge_own_times(steps)[0]


def print_nulls(seed: int, runs: int, noises: Sequence[str] = _NOISES) -> None:
    """False alarms of worker tables in which nobody is slow, and how often the report warns."""
    print(f"\n## Nulls: tables of {_SHAPES} workers x steps, {runs} runs each\n")
    _print_header("noise", "correlation", "named or workload", "of", "warned of drift")
    for noise in noises:
        for correlation in (0.0, 0.5, 0.8, 0.9, 0.95):
            named = warned = total = 0
            for workers, steps in _SHAPES:
                for run in range(runs):
                    draw = np.random.default_rng([seed, run, workers])
                    table = WorkerTable(
                        workers=workers, num_steps=steps, noise=noise, correlation=correlation,
                        deviation=float(draw.uniform(0.01, 0.05)), seed=int(draw.integers(1 << 60)),
                    )  # fmt: skip
                    verdict = _worker_verdict(table)
                    total += 1
                    named += verdict.kind != "nobody"
                    warned += any("drift" in line for line in verdict.evidence)
            _print_row(noise, correlation, named, total, warned)
    named = sum(_permuted_names(seed, run) for run in range(runs))
    _print_row("permuted: four of ten workers slow in a fifth of the steps", 0, named, runs, "")


def _permuted_names(seed: int, run: int) -> bool:
    draw = np.random.default_rng([seed, run])
    faults = tuple(Fault(worker=worker, first=200, steps=50, factor=1.25) for worker in range(4))
    seconds = WorkerTable(faults=faults, seed=int(draw.integers(1 << 60))).seconds()
    # Over workers too: one that is often slow without a fault is not a null.
    relative = seconds / np.median(seconds, axis=1, keepdims=True)
    shuffled = draw.permutation(relative.ravel()).reshape(seconds.shape)
    steps = timed_steps("job", list(range(10)), np.arange(250), shuffled)
    return judge_own_times(steps)[0].kind != "nobody"


def print_workers(seed: int, runs: int) -> None:
    """How often the slow worker alone is named, by size and length of the fault."""
    faults = ((1.3, 14, 1), (1.6, 14, 1), (2.3, 14, 1), (2.0, 20, 1), (1.2, 30, 1), (3.0, 240, 10))
    print("\n## Workers: the slow one and no other named, of the runs\n")
    _print_header("workers x steps", "noise", *(f"x{f} in {n // e} steps" for f, n, e in faults))
    for workers, steps in ((10, 250), (4, 1000), (8, 260)):
        for noise, correlation in (("normal", 0.6), ("normal", 0.8), ("t3", 0.6), ("hiccups", 0.3)):
            cells = []
            for factor, length, every in faults:
                right = wrong = 0
                for run in range(runs):
                    draw = np.random.default_rng([seed, run, length])
                    worker = int(draw.integers(workers))
                    first = int(draw.integers(5, steps - length - 1))
                    fault = Fault(
                        worker=worker, first=first, steps=length, factor=factor, every=every
                    )
                    table = WorkerTable(
                        workers=workers, num_steps=steps, noise=noise, correlation=correlation,
                        deviation=float(draw.uniform(0.01, 0.04)), levels=0.02, faults=(fault,),
                        seed=int(draw.integers(1 << 60)),
                    )  # fmt: skip
                    ranks = _worker_verdict(table).ranks
                    right += ranks == (worker,)
                    wrong += bool(set(ranks) - {worker})
                cells.append(f"{right}/{runs}" + (f", {wrong} wrong" if wrong else ""))
            _print_row(f"{workers} x {steps}", f"{noise}, {correlation}", *cells)


def _trace_verdict(job: Any, folder: Path) -> Verdict:
    path = folder / "trace.parquet"
    pq.write_table(job.table(), path)
    return replay_trace(read_trace(path)).verdict


def _describe(verdict: Verdict) -> str:
    if verdict.kind == "rank":
        return "rank 1" if verdict.ranks == (1,) else "ranks"
    return str(verdict.cause or verdict.kind)


def print_pipelines(seed: int, runs: int) -> None:
    """Uneven sequences x heavy last stage x slow rank 1: what the verdict says."""
    print(f"\n## Pipelines of 2 and 4 stages x 2 and 4 replicas, {runs} runs of each\n")
    _print_header("spread of sequences", "heavy stage", "slow rank", "verdicts")
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        for spread in (0.0, 0.1, 0.3):
            for heavy in (1.0, 1.3, 1.6):
                for slow in (1.0, 1.3, 1.8):
                    verdicts = Counter(
                        _describe(
                            _trace_verdict(_pipeline(seed, run, layout, values), Path(folder))
                        )
                        for run in range(runs)
                        for layout in ((2, 4), (4, 4), (2, 2), (4, 2))
                        for values in [(spread, heavy, slow)]
                    )
                    counts = ", ".join(f"{name} {n}" for name, n in verdicts.most_common())
                    _print_row(spread, heavy, slow, counts)


def _pipeline(
    seed: int, run: int, layout: tuple[int, int], values: tuple[float, float, float]
) -> Any:
    (stages, replicas), (spread, heavy, slow) = layout, values
    return SyntheticTrace(
        stages=stages,
        replicas=replicas,
        batch_spread=spread,
        stage_weight={stages - 1: heavy},
        slow={1: slow},
        seed=int(np.random.default_rng([seed, run]).integers(1 << 31)),
    )


_TABLES: dict[str, Callable[[int, int], None]] = {
    "nulls": print_nulls,
    "workers": print_workers,
    "pipelines": print_pipelines,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(_TABLES)))
@click.option("--seed", default=1, show_default=True, help="Seed of all generators.")
@click.option("--runs", default=30, show_default=True, help="Runs of each cell.")
@click.option("--noise", "noises", multiple=True, type=click.Choice(_NOISES), default=_NOISES,
              help="Noise of the nulls; repeatable; default: every kind.")  # fmt: skip
def main(names: tuple[str, ...], seed: int, runs: int, noises: tuple[str, ...]) -> None:
    """Print the tables."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"seed {seed}")  # fmt: skip
    for name in names or _TABLES:
        if name == "nulls":
            print_nulls(seed, runs, noises)
        else:
            _TABLES[name](seed, runs)


if __name__ == "__main__":
    main()
