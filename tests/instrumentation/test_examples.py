"""Each script of docs/examples under a launcher of its kind: the slow rank and phase are found.

Each step of each rank has all its phases, with work and synchronisation apart.
"""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "examples" / "examples.py"


def run_matrix(*cells: str, timeout_seconds: float) -> None:
    done = subprocess.run(
        [sys.executable, BENCH, *cells],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.distributed
@pytest.mark.timeout(320)
def test_the_report_names_the_slow_rank_and_its_phase() -> None:
    run_matrix("ddp:torchrun:forward:0", timeout_seconds=300)


@pytest.mark.release
@pytest.mark.distributed
@pytest.mark.timeout(3600)
def test_every_script_is_judged_right_under_every_launcher() -> None:
    run_matrix(timeout_seconds=3500)
