"""A process that stood still has it in its rows; one that slept or had no core did not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep_records.page.reader import read_rows

from ..rank_page import ENVIRONMENT, page_of
from .test_native import needs_c
from .test_run_queue import crowded_core

pytestmark = [needs_c, pytest.mark.distributed, pytest.mark.timeout(60)]

# Says when it is past its first tick, and goes on until its stdin ends.
_LOOP = """
import select, sys, time
import lockstep

def compute(seconds):
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        sum(range(1000))

monitor, step = lockstep.attach(), 0
while step < 1_000_000:
    {work}
    monitor.step()
    step += 1
    if step == 150:
        print("begun", flush=True)
    if step > 150 and select.select([sys.stdin], [], [], 0)[0]:
        break
monitor.close()
"""


@contextmanager
def loop(root: Path, work: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A rank in its loop, which ends with the block."""
    command = [sys.executable, "-c", _LOOP.format(work=work)]
    environment = {**os.environ, **ENVIRONMENT, "LOCKSTEP_DIR": str(root)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == b"begun\n"
            yield process
            process.stdin.close()
            assert process.wait() == 0
        finally:
            process.kill()


def stops_of(root: Path) -> list[float]:
    """Seconds of the stops, one for each row that has any."""
    stops = [row["extras"]["stopped_seconds"] for row in read_rows(page_of(root))]
    assert stops[-1] is not None
    return [stop for stop in stops if stop]


def threads_of(process: int) -> list[str]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [(task / "comm").read_text(encoding="ascii").strip() for task in tasks]


def test_a_stopped_process_has_its_stops_in_its_rows_and_the_thread_ends_with_the_monitor(
    root: Path,
) -> None:
    folders, ending = [root / str(number) for number in range(2)], root / "ending"
    with (
        loop(folders[0], "compute(0.01)") as busy,
        loop(folders[1], "time.sleep(0.01)") as idle,
        loop(ending, "monitor.close() if step == 100 else time.sleep(0.01)") as ended,
    ):
        for _ in range(5):
            for number in (signal.SIGSTOP, signal.SIGCONT):
                os.kill(busy.pid, number)
                os.kill(idle.pid, number)
                time.sleep(0.1)
        assert threads_of(idle.pid).count("lockstep-stops") == 1  # it has ticked again
        assert "lockstep-stops" not in threads_of(ended.pid)
    for stops in map(stops_of, folders):
        assert len(stops) == pytest.approx(5, abs=1)
        assert sum(stops) == pytest.approx(0.5, rel=0.25)


def test_who_waits_for_a_core_has_not_stood_still(root: Path) -> None:
    folders = [root / str(number) for number in range(2)]
    works = ("compute(0.01)", "time.sleep(0.01)")
    with crowded_core(), loop(folders[0], works[0]), loop(folders[1], works[1]):
        time.sleep(1.0)
    assert [sum(stops_of(folder)) < 0.1 for folder in folders] == [True, True]
