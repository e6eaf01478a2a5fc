"""Each script of docs/examples under a launcher of its kind: the slow rank and phase are found."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "examples" / "examples.py"


@pytest.mark.release
@pytest.mark.distributed
@pytest.mark.timeout(3600)
def test_every_script_is_judged_right_under_every_launcher() -> None:
    done = subprocess.run(
        [sys.executable, BENCH], capture_output=True, text=True, check=False, timeout=3500
    )
    assert done.returncode == 0, done.stdout + done.stderr
