"""A rank that is killed at any moment leaves a consistent page."""

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
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.layout import ROW_FLAGS
from lockstep_records.page.reader import PageError, read_page, read_rows

ROWS = 4096
KILLS = int(os.environ.get("LOCKSTEP_KILLS", "8"))

# Forks a rank for every line that names a job: an interpreter for each would take most of the time.
RANKS = """
import os, sys, time
from pathlib import Path
import lockstep
from lockstep.monitor import step_watch
sys.path.insert(0, sys.argv[2])
from fake_device import FakeStream, fake_device

def train(job_id):
    stream = FakeStream()
    stream.keeps_up = True  # events pass at once: rows are written again one step later
    device = fake_device(stream) if job_id.startswith("device") else None
    step_watch.find_device = lambda: device
    monitor = lockstep.attach(
        root=Path(sys.argv[1]), environment={"LOCKSTEP_JOB_ID": job_id}, rows=4096
    )
    print(os.getpid(), flush=True)
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
def rank_server(root: Path) -> Iterator[Callable[[str], str]]:
    """Sends a line to the process that forks ranks; returns its next line."""
    with subprocess.Popen(
        [sys.executable, "-c", RANKS, str(root), str(Path(__file__).parents[1])],
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


def check_totals(path: Path) -> None:
    """Totals are those of the settled rows, by the clock that each of them has."""
    page = read_page(path)
    rows, settled = read_rows(page), page.state["settled_steps"]
    by_clock: dict[str, list[int]] = {bit: [] for bit in ("device", "device_pending")}
    for row in rows:
        for bit, numbers in by_clock.items():
            if row["flags"] & 1 << ROW_FLAGS.index(bit):
                numbers.append(row["number"])
    assert not set(by_clock["device"]) & set(by_clock["device_pending"])
    # Up to four are written again in one step, and a kill comes before they are counted.
    assert all(number < settled + 4 for number in by_clock["device"])
    if page.state["steps"] > ROWS:
        return  # the ring has lost the first ones
    for phase, total in page.state["phase_seconds"].items():
        if phase in STEP_PHASES:
            of_rows = sum(row["phase_seconds"][phase] for row in rows if row["number"] < settled)
            assert total == pytest.approx(of_rows, rel=1e-4, abs=1e-6)


@pytest.mark.distributed
@pytest.mark.timeout(180 + 2 * KILLS)
@pytest.mark.skipif(native.compiled is None, reason="nothing was compiled here")
@pytest.mark.parametrize("clock", ["host", "device"])
def test_a_killed_rank_leaves_a_consistent_page(root: Path, clock: str) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  # pytest shows it when the test fails
    chance = random.Random(seed)
    with rank_server(root) as exchange:
        for number in range(KILLS):
            rank = exchange(f"{clock}-{number}")
            time.sleep(chance.uniform(0, 0.03))
            os.kill(int(rank), signal.SIGKILL)
            assert exchange("") == "dead"
            try:
                path = root / "jobs" / f"{clock}-{number}" / "0" / "rank-00000.page"
                check_page(path)
                check_totals(path)
            except PageError as error:
                pytest.fail(f"kill {number}: {error}")
