"""Which figure sees a known delay of one rank: ``python bench/instrumentation_points.py [STRATEGY...]``.

Two ranks over gloo, rank 1 late by 100 ms in one place a step, the places in turn. For each place
the medians of four figures: the excess of its own phase on the late rank, the largest excess of any
phase on the other one (which a tool that looks for the longest phase would accuse), the difference
of the step times, and the lateness, the other's wait less its own.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.reader import read_page, read_rows

_ROOT = Path("/dev/shm/lockstep-bench-attach")  # noqa: S108  # a page must lie on a tmpfs
_LOOP = Path(__file__).parents[1] / "tests" / "instrumentation" / "strategies_loop.py"
_PLACES = ("data", "forward", "backward", "optimizer", "other", "collective")
_WARM_UP = 8
_LATE, _OTHER = 1, 0


def _run(names: Sequence[str]) -> None:
    shutil.rmtree(_ROOT, ignore_errors=True)
    _ROOT.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(_LOOP), str(_ROOT), *names]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


class _Steps:
    """Rows of both ranks of one strategy, each slow step together with the quick one after it."""

    def __init__(self, name: str) -> None:
        pages = [_ROOT / "jobs" / name / "0" / f"rank-{rank:05}.page" for rank in (0, 1)]
        self.rows = [read_rows(read_page(page)) for page in pages]
        self.turns = [place for place, _ in json.loads((_ROOT / f"{name}.json").read_text())]

    def median(self, place: str, of: Callable[[int], float]) -> float:
        """Median in milliseconds of a figure over the steps in which a place was slow."""
        at = [n for n in range(_WARM_UP, len(self.turns) - 1) if self.turns[n] == place]
        return 1e3 * statistics.median(of(n) for n in at)

    def excess(self, rank: int, phase: str, place: str) -> float:
        """Milliseconds of a phase in slow steps above those in quick ones."""
        rows = self.rows[rank]

        def seconds(n: int) -> float:
            return float(rows[n][f"{phase}_seconds"])

        return self.median(place, seconds) - self.median("none", seconds)

    def lateness(self, place: str) -> float:
        """Milliseconds by which the other waited longer, in a slow step and the one after it."""

        def waited(rows: list[dict[str, Any]], n: int) -> float:
            return float(rows[n]["sync_seconds"] + rows[n + 1]["sync_seconds"])

        other, late = self.rows[_OTHER], self.rows[_LATE]
        return self.median(place, lambda n: waited(other, n) - waited(late, n))

    def step_difference(self, place: str) -> float:
        """Milliseconds by which the late rank's step was the longer one."""
        other, late = self.rows[_OTHER], self.rows[_LATE]
        return self.median(place, lambda n: float(late[n]["seconds"] - other[n]["seconds"]))


def main(names: Sequence[str]) -> None:
    """Print the table."""
    try:
        _run(names)
        print(
            "strategy    slow in     own phase ms  the other's worst ms  steps differ ms  late ms"
        )
        for name in names:
            steps = _Steps(name)
            for place in _PLACES:
                phase = "sync" if place == "collective" else place
                worst, of = max((steps.excess(_OTHER, p, place), p) for p in STEP_PHASES)
                print(
                    f"{name:<12}{place:<12}{steps.excess(_LATE, phase, place):>12.1f}"
                    f"{worst:>16.1f} {of:<8}{steps.step_difference(place):>14.1f}"
                    f"{steps.lateness(place):>9.1f}"
                )
    finally:
        shutil.rmtree(_ROOT, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ("ddp", "fsdp2", "1f1b"))
