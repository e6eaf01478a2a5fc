"""Evaluates every situation and writes not_met.yaml.

`PYTHONPATH=tests python -m alerts.situations_second [PART OF A NAME ...]`
"""

import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import yaml

from alerts.situations.expand import Paging, shipped

from .judge import SCRAPE, Heard, firing_of, heard, judged
from .not_met import CASES, FILE


def evaluate(number: int, paging: Paging) -> tuple[list[str], list[Heard]]:
    """What is wrong in a situation, and all that was heard in it."""
    case = CASES[number]
    runs = heard(case, firing_of(case, paging), paging)
    return judged(case, runs).sentences, runs


def main() -> None:
    """Prints a line a situation; with names only those that hold one, and no file."""
    names = sys.argv[1:]
    numbers = [
        number
        for number, case in enumerate(CASES)
        if not names or any(name in case.name for name in names)
    ]
    found: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(os.cpu_count()) as processes,
    ):
        paging = shipped(SCRAPE, Path(folder))
        answers = processes.map(partial(evaluate, paging=paging), numbers)
        for number, (sentences, runs) in zip(numbers, answers, strict=True):
            name = CASES[number].name
            if sentences:
                found[name] = "; ".join(sentences[:3])
            print(f"{name}: {found.get(name, 'right')}", flush=True)
            for run in runs if names else ():
                print(f"    {run.kind}: {run} until {run.end / 60:g} m")
    print(f"{len(numbers) - len(found)} of {len(numbers)} are right")
    if not names:
        FILE.write_text(yaml.safe_dump(found, width=200, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()
