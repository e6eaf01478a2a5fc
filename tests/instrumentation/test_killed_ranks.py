"""A rank that is killed at any moment leaves a consistent page, whichever recorder wrote it."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.recorder import native
from lockstep_records.page.reader import PageError, read_page, read_rows

KILLS = int(os.environ.get("LOCKSTEP_KILLS", "50"))

HAMMER = """
import sys
from pathlib import Path
import lockstep
environment = {"LOCKSTEP_JOB_ID": sys.argv[2]}
monitor = lockstep.attach(root=Path(sys.argv[1]), environment=environment, rows=64)
print(type(monitor.recorder).__module__, flush=True)
step = 0
while True:
    monitor.enter_phase("forward")
    monitor.wait_ended(monitor.wait_begins(), "all_reduce", 1, 8, 2)
    monitor.step(loss=float(step), tokens=step % 7, samples=4)
    step += 1
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("switch", "module", "kills"),
    [("on", "_native", KILLS), ("off", "recorder.recorder", max(1, KILLS // 5))],
)
def test_a_killed_rank_leaves_a_consistent_page(
    root: Path, switch: str, module: str, kills: int
) -> None:
    if switch == "on" and native.compiled is None:
        pytest.skip("nothing was compiled here")
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  # pytest shows it when the test fails
    chance = random.Random(seed)
    for number in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(root), f"job-{number}"],
            env={**os.environ, native.SWITCH: switch},
            stdout=subprocess.PIPE,
            text=True,
        ) as rank:
            assert rank.stdout is not None
            assert rank.stdout.readline().strip() == f"lockstep.{module}"
            time.sleep(chance.uniform(0, 0.03))
            rank.send_signal(signal.SIGKILL)
        try:
            page = read_page(root / "jobs" / f"job-{number}" / "0" / "rank-00000.page")
        except PageError as error:
            pytest.fail(f"kill {number}: {error}")
        steps = page.state["steps"]
        assert page.state["tokens"] == sum(range(7)) * (steps // 7) + sum(range(steps % 7))
        assert page.state["samples"] == 4 * steps
        rows = read_rows(page)
        numbers = [row["number"] for row in rows]
        newest = numbers[-1] + 1 if rows else 0
        assert newest - steps in {0, 1}
        assert numbers == list(range(newest - len(numbers), newest))
        assert all(row["loss"] == row["step"] == row["number"] for row in rows)
