"""Which figure shows a known delay of one rank.

Usage: ``python bench/stragglers/instrumentation_points.py [STRATEGY...]``. Two ranks run over gloo.
Rank 1 is late by 100 ms in one phase of each other step, and the phases take turns. For each phase
the table has the medians of four figures: the excess of that phase on the late rank, the largest
excess of any phase on the other rank (a tool that reports the longest phase would accuse it), the
difference of the step times, and the lateness, the other's wait less its own.
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
_LOOP = Path(__file__).parents[2] / "tests/instrumentation/strategies/strategies_loop.py"
_DELAYED = ("data", "forward", "backward", "optimizer", "other", "collective")
_WARM_UP = 8
_LATE, _OTHER = 1, 0


def _run(names: Sequence[str]) -> None:
    shutil.rmtree(_ROOT, ignore_errors=True)
    _ROOT.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(_LOOP), str(_ROOT), *names]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


class _Steps:
    """Rows of both ranks of one strategy; each slow step is followed by a quick one."""

    def __init__(self, name: str) -> None:
        pages = [_ROOT / "jobs" / name / "0" / f"rank-{rank:05}.page" for rank in (0, 1)]
        self.rows = [read_rows(read_page(page)) for page in pages]
        delays = json.loads((_ROOT / f"{name}.json").read_text())
        self.delayed_phases = [phase for phase, _ in delays]

    def median(self, delayed: str, seconds: Callable[[int], float]) -> float:
        """Median of a figure over the steps in which a phase was delayed, milliseconds."""
        steps = range(_WARM_UP, len(self.delayed_phases) - 1)
        return 1e3 * statistics.median(
            seconds(step) for step in steps if self.delayed_phases[step] == delayed
        )

    def excess(self, rank: int, phase: str, delayed: str) -> float:
        """Duration of a phase in slow steps less that in quick ones, milliseconds."""
        rows = self.rows[rank]

        def phase_seconds(step: int) -> float:
            return float(rows[step][f"{phase}_seconds"])

        return self.median(delayed, phase_seconds) - self.median("none", phase_seconds)

    def lateness(self, delayed: str) -> float:
        """Milliseconds by which the other waited longer, in a slow step and the one after it."""

        # A rank that is late after the last collective is waited for in the next step.
        def wait_seconds(rows: list[dict[str, Any]], step: int) -> float:
            return float(rows[step]["sync_seconds"] + rows[step + 1]["sync_seconds"])

        other, late = self.rows[_OTHER], self.rows[_LATE]
        return self.median(
            delayed, lambda step: wait_seconds(other, step) - wait_seconds(late, step)
        )

    def step_difference(self, delayed: str) -> float:
        """Duration of the late rank's step less that of the other, milliseconds."""
        other, late = self.rows[_OTHER], self.rows[_LATE]
        return self.median(
            delayed, lambda step: float(late[step]["seconds"] - other[step]["seconds"])
        )


def main(names: Sequence[str]) -> None:
    """Print the table."""
    try:
        _run(names)
        print(
            "strategy    slow in     own phase ms  the other's worst ms  steps differ ms  late ms"
        )
        for name in names:
            steps = _Steps(name)
            for delayed in _DELAYED:
                own_phase = "sync" if delayed == "collective" else delayed
                worst, worst_phase = max(
                    (steps.excess(_OTHER, phase, delayed), phase) for phase in STEP_PHASES
                )
                print(
                    f"{name:<12}{delayed:<12}{steps.excess(_LATE, own_phase, delayed):>12.1f}"
                    f"{worst:>16.1f} {worst_phase:<8}{steps.step_difference(delayed):>14.1f}"
                    f"{steps.lateness(delayed):>9.1f}"
                )
    finally:
        shutil.rmtree(_ROOT, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ("ddp", "fsdp2", "1f1b"))
