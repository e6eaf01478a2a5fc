"""The bench of loops as other people write them: its cells run, and their reports are right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "loops"


def run_bench(*arguments: str) -> str:
    path = os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")])
    bench = subprocess.run(
        [sys.executable, "-m", "public_loops", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert bench.returncode == 0, bench.stderr
    return bench.stdout


@pytest.mark.distributed
@pytest.mark.timeout(220)
def test_a_slow_fetch_and_a_mistake_are_found_in_a_loop_of_other_people() -> None:
    printed = run_bench("word_language_model", "--fault", "slow fetch", "--fault", "raised")
    assert "2 of 2 right" in printed, printed
