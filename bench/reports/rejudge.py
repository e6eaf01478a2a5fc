"""Judges every recording of the corpus anew: right, wrong, and what changed since the last commit.

``PYTHONPATH=tests python bench/reports/rejudge.py [NAME ...] [--healthy N] [--json FILE]``
"""

import json
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import click
import numpy as np
import yaml
from reports.corpus.cases import Case, list_cases, make_truth, read_unmet, write_unmet
from reports.corpus.judging import Judged, Truth
from reports.corpus.made_run import Cost, MadeRun

_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = click.Path(path_type=Path, file_okay=False)
_TRUTH = "truth.yaml"
_NOISES = ("normal", "lognormal", "exponential", "dragging")


def recorded_cases(folder: Path) -> Iterator[Case]:
    """Recordings that another bench kept: what each ``truth.yaml`` below a folder lists."""
    for file in sorted(folder.rglob(_TRUTH)):
        for entry in yaml.safe_load(file.read_text()):
            window = entry.get("window")
            yield Case(
                name=f"{file.parent.relative_to(folder)}/{entry['name']}",
                truth=make_truth(entry["truth"]),
                has_shares=entry["truth"].get("lost") is not None,
                file=str(file.parent / entry["path"]),
                window=tuple(window) if window else None,
            )


def healthy_case(number: int) -> Case:
    """A healthy run with ordinary life in it, drawn by its number."""
    draw = np.random.default_rng([7, number])
    ranks = int(draw.choice([2, 3, 4, 8, 16, 32]))
    steps = int(draw.choice([40, 120, 300]))
    life = [
        Cost(owner="checkpoint", hits="all", phase="checkpoint", seconds=0.5, every=50,
             spread=0.05),
        Cost(owner="evaluation", hits="all", phase="eval", seconds=1.0, every=100, first=99),
        Cost(owner="collector", hits="each", phase="forward", seconds=0.008, every=80,
             state="collector"),
        Cost(owner="loader", hits="random", phase="data", seconds=0.03, every=70, spread=0.5),
        Cost(owner="load", hits="each", phase="forward", seconds=0.01, every=6, spread=0.5,
             state="queued"),
        Cost(owner="logging", hits=0, phase="other", seconds=0.004, every=10),
    ]  # fmt: skip
    run = MadeRun(
        ranks=ranks,
        steps=steps,
        noise=str(draw.choice(_NOISES)),
        jitter=float(draw.uniform(0.005, 0.05)),
        levels=float(draw.uniform(0, 0.01)),
        workload=float(draw.choice([0, 0.02, 0.1])),
        drift=float(draw.choice([0, 0, 0.2, -0.1])),
        warm_up=int(draw.choice([0, 1, 5])),
        seed=number,
        costs=tuple(cost for cost in life if draw.integers(2)),
    )
    return Case(
        name=f"healthy run {number}",
        truth=Truth(kinds=("workload", "unknown")),
        source=run,
        has_shares=True,
    )


def _judge(case: Case, recordings: Path) -> Judged:
    try:
        return case.judged(recordings)
    except Exception as error:  # noqa: BLE001  # whatever fails in a report is wrong of it
        return Judged(wrong={"error": f"{type(error).__name__}: {error}"[:200]}, answer="error")


def judge_all(cases: Sequence[Case], recordings: Path) -> dict[str, Judged]:
    """The judgements by name of the case, on all cores."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        judged = pool.map(partial(_judge, recordings=recordings), cases, chunksize=4)
        return {case.name: answer for case, answer in zip(cases, judged, strict=True)}


def _why(judged: Judged) -> str:
    return "; ".join(f"{kind}: {why}" for kind, why in judged.wrong.items())


def print_judged(cases: Sequence[Case], judged: dict[str, Judged]) -> None:
    """Sums by family, what is wrong, and what differs from the kept table."""
    unmet = read_unmet()
    right, total = Counter[str](), Counter[str]()
    for name, answer in judged.items():
        family = re.split(r"[-/]", name)[0]
        total[family] += 1
        right[family] += not answer.wrong
    print("| cases | right | of |\n| --- | --- | --- |")
    for family, count in total.items():
        print(f"| {family} | {right[family]} | {count} |")
    for name, answer in judged.items():
        if answer.wrong:
            print(f"wrong: {name}: {_why(answer)} ({answer.answer}: {answer.headline})")
    for name, answer in judged.items():
        if bool(answer.wrong) != (name in unmet):
            print(f"changed: {name} is {'wrong' if answer.wrong else 'right'} now")
    shared = [case.name for case in cases if case.has_shares]
    num_shares = sum("lost" not in judged[name].wrong for name in shared)
    print(f"\n{right.total()} of {total.total()} right; shares of lost time right in {num_shares} "
          f"of {len(shared)}; kinds of mistakes: "
          f"{dict(Counter(kind for a in judged.values() for kind in a.wrong))}")  # fmt: skip


@click.command()
@click.argument("names", nargs=-1)
@click.option("--healthy", "num_healthy", default=0, help="Generated healthy runs beside it.")
@click.option("--recordings", type=_FOLDER, default=_ROOT / "tests" / "fixtures",
              help="Folder of real recordings.")  # fmt: skip
@click.option(
    "--kept", "folders", type=_FOLDER, multiple=True, help="Folder of recordings of other benches."
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all judgements.")
@click.option("--write", is_flag=True, help="Writes the table of cases that are not met.")
def main(
    *,
    names: tuple[str, ...],
    num_healthy: int,
    recordings: Path,
    folders: tuple[Path, ...],
    file: Path | None,
    write: bool,
) -> None:
    """Judge the cases whose names begin so; all without NAMES."""
    begin = time.monotonic()
    cases = [case for case in list_cases() if case.name.startswith(names or "")]
    cases += [case for folder in folders for case in recorded_cases(folder)]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    judged = judge_all(cases, recordings)
    print_judged(cases, judged)
    if num_healthy:
        healthy = judge_all([healthy_case(number) for number in range(num_healthy)], recordings)
        named = [f"{name}: {a.answer}" for name, a in healthy.items() if a.named]
        print(f"somebody named in {len(named)} of {num_healthy} healthy runs", *named, sep="\n")
        others = Counter(a.answer for a in healthy.values())
        print(f"verdicts: {dict(others)}")
    if file is not None:
        lines = {name: {"wrong": dict(a.wrong), "answer": a.answer, "lost": a.lost}
                 for name, a in judged.items()}  # fmt: skip
        file.write_text(json.dumps(lines, indent=1) + "\n")
    if write:
        names_of_cases = {case.name for case in list_cases()}
        unmet = {name: why for name, why in read_unmet().items() if name in names_of_cases}
        unmet |= {name: _why(answer) for name, answer in judged.items() if name in names_of_cases}
        write_unmet({name: why for name, why in unmet.items() if why})
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
