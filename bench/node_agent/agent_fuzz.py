"""Feeds the node agent with spoiled input: ``python bench/node_agent/agent_fuzz.py``.

A kind of input is one entry of ``KINDS``: it takes a random generator and an empty folder, makes
one case in it and yields the readings that the agent's own collectors make of it. No case may
crash a collector, let a counter fall over a restart, or make an exposition that is not valid: the
OpenMetrics parser reads that of every case, and promtool one of every hundred cases, with each
series that any of them options.
"""

import argparse
import logging
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agent_fuzz_events import kernel_logs, pages, pod_resources
from agent_fuzz_trees import NODES, trees
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lockstep_agent.collector import AnyReading
from lockstep_agent.exposition.text import Exposition, render
from lockstep_records.files.jobs import CANDIDATE_ROOTS

Kind = Callable[[random.Random, Path], Iterable[AnyReading]]
KINDS: dict[str, Kind] = {
    "kernel_logs": kernel_logs,
    "pages": pages,
    "pod_resources": pod_resources,
    "trees": trees,
}
_BATCH = 100
_REPORT_EVERY = 1000


def check(exposition: Exposition) -> None:
    """Lets the OpenMetrics parser read it.

    Raises:
        ValueError: it is not valid, or holds a series twice.
    """
    parse: Any = text_string_to_metric_families
    for family in parse(exposition.openmetrics.decode()):
        assert family.samples, family.name


def check_by_promtool(exposition: Exposition) -> None:
    """Lets promtool read the text format.

    Raises:
        ValueError: promtool complains.
    """
    command = ["promtool", "check", "metrics"]
    lint = subprocess.run(command, input=exposition.text, capture_output=True, check=False)
    if lint.returncode or lint.stdout or lint.stderr:
        raise ValueError(f"promtool: {lint.stdout!r} {lint.stderr!r}")


def try_case(kind: str, seed: int, case: int, folder: Path) -> list[AnyReading]:
    """The readings of one case, made in an empty folder, after the check of its exposition."""
    readings = list(KINDS[kind](random.Random(f"{seed}/{kind}/{case}"), folder))
    check(render(readings, 0))
    return readings


def run(kind: str, cases: int, seed: int, *, first: int = 0, by_promtool: bool = True) -> int:
    """Tries so many cases of a kind, numbered from the first; returns the number of readings.

    Raises:
        Exception: a case broke a collector or the exposition; its note says which.
    """
    num_readings = 0
    batch: list[AnyReading] = []
    with (
        closing(NODES),
        tempfile.TemporaryDirectory(prefix="fuzz-", dir=CANDIDATE_ROOTS[-1].parent) as scratch,
    ):
        folder = Path(scratch) / "case"
        for case in range(first, first + cases):
            folder.mkdir()
            try:
                case_readings = try_case(kind, seed, case, folder)
                batch.extend(case_readings)
                if (case + 1) % _BATCH == 0 or case + 1 == first + cases:
                    if by_promtool:
                        check_by_promtool(render(batch, 0))
                    batch.clear()
            except Exception as error:
                error.add_note(f"kind {kind}, seed {seed}, case {case}")
                raise
            num_readings += len(case_readings)
            shutil.rmtree(folder)
            if (case + 1) % _REPORT_EVERY == 0:
                print(f"{kind}: {case + 1} cases, 0 failures", flush=True)
    return num_readings


def main(arguments: Sequence[str] | None = None) -> None:
    """Tries cases of each kind and prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=25_000, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="by default all")
    options = parser.parse_args(arguments)
    logging.disable()  # spoiled input is logged, and here all of it is spoiled
    print(f"seed {options.seed}", flush=True)
    for kind in options.kind or sorted(KINDS):
        began = time.monotonic()
        readings = run(kind, options.cases, options.seed, first=options.first)
        seconds = time.monotonic() - began
        print(f"{kind}: {options.cases} cases, {readings} readings, 0 failures, {seconds:.0f} s")


if __name__ == "__main__":
    main()
