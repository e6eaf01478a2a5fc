"""A rank that is killed at any moment leaves a consistent page, whichever recorder wrote it."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.recorder import native
from lockstep_records.page.reader import PageError, read_page, read_rows

KILLS = int(os.environ.get("LOCKSTEP_KILLS", "50"))

# Forks a rank for every line that names a job: an interpreter for each would take most of the time.
RANKS = """
import os, sys
from pathlib import Path
import lockstep

def train(job_id):
    monitor = lockstep.attach(
        root=Path(sys.argv[1]), environment={"LOCKSTEP_JOB_ID": job_id}, rows=64
    )
    print(os.getpid(), type(monitor.recorder).__module__, flush=True)
    step = 0
    while True:
        monitor.enter_phase("forward")
        monitor.wait_ended(monitor.wait_begins(), "all_reduce", 1, 8, 2)
        monitor.step(loss=float(step), tokens=step % 7, samples=4)
        step += 1

for line in sys.stdin:
    rank = os.fork()
    if rank == 0:
        train(line.strip())
    os.waitpid(rank, 0)
    print("dead", flush=True)
"""


@contextmanager
def rank_server(root: Path, switch: str) -> Iterator[Callable[[str], str]]:
    """Sends a line to the process that forks ranks; returns its next line."""
    with subprocess.Popen(
        [sys.executable, "-c", RANKS, str(root)],
        env={**os.environ, native.SWITCH: switch},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        write, flush, read_line = server.stdin.write, server.stdin.flush, server.stdout.readline

        def exchange(line: str) -> str:
            if line:
                write(f"{line}\n")
                flush()
            return read_line().strip()

        yield exchange
        server.stdin.close()


def check_page(path: Path) -> None:
    """Totals and rows of the page are those of some moment of the loop."""
    page = read_page(path)
    steps = page.state["steps"]
    assert page.state["tokens"] == sum(range(7)) * (steps // 7) + sum(range(steps % 7))
    assert page.state["samples"] == 4 * steps
    rows = read_rows(page)
    numbers = [row["number"] for row in rows]
    newest = numbers[-1] + 1 if rows else 0
    assert newest - steps in {0, 1}
    assert numbers == list(range(newest - len(numbers), newest))
    assert all(row["loss"] == row["step"] == row["number"] for row in rows)


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
    with rank_server(root, switch) as exchange:
        for number in range(kills):
            rank, recorder_module = exchange(f"job-{number}").split()
            assert recorder_module == f"lockstep.{module}"
            time.sleep(chance.uniform(0, 0.03))
            os.kill(int(rank), signal.SIGKILL)
            assert exchange("") == "dead"
            try:
                check_page(root / "jobs" / f"job-{number}" / "0" / "rank-00000.page")
            except PageError as error:
                pytest.fail(f"kill {number}: {error}")
