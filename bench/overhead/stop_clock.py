"""What the stop clock costs a rank, and what it sees of stops of 40 ms and of 20 ms.

``stop_clock.py``: a loop of 10 ms steps alone, and beside processes that fill the caches. Ten
seconds without a stop give the thread's share of a core; then the process is stopped 40 times.
"""

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from lockstep_records.page.reader import read_page, read_rows

_SECONDS, _STOPS, _PERIOD_SECONDS = 10.0, 40, 0.2
_BUSY = "import numpy as np\nvalues = np.zeros(1 << 24)\nwhile True: values += 1"
_LOOP = """
import time, lockstep
monitor = lockstep.attach()
for step in range(1_000_000):
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        sum(range(1000))
    monitor.step()
    if step == 150:
        print(flush=True)
"""


def _spent(process: int) -> tuple[int, int]:
    """Nanoseconds and time slices that the stop clock's thread has had on a core."""
    for task in Path(f"/proc/{process}/task").iterdir():
        if (task / "comm").read_text().strip() == "lockstep-stops":
            core_ns, _, slices = map(int, (task / "schedstat").read_text().split())
            return core_ns, slices
    raise RuntimeError("the process has no thread named lockstep-stops")


def _cost(process: int) -> str:
    (core_ns, slices), began = _spent(process), time.monotonic()
    time.sleep(_SECONDS)
    core, number = (after - before for after, before in zip(
        _spent(process), (core_ns, slices), strict=True))  # fmt: skip
    seconds = time.monotonic() - began
    return f"{core / seconds / 1e7:.2f} % | {number / seconds:.0f} | {core / number / 1e3:.0f}"


def _stop(process: int, seconds: float) -> float:
    """Stops the process again and again; returns for how long in all."""
    total = 0.0
    for _ in range(_STOPS):
        began = time.monotonic()
        os.kill(process, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process, signal.SIGCONT)
        total += time.monotonic() - began
        time.sleep(_PERIOD_SECONDS - seconds)
    return total


def _seen(pages: Path) -> list[float]:
    rows = read_rows(read_page(next(pages.glob("jobs/*/*/*.page"))))
    return [row["stopped_seconds"] for row in rows if row["stopped_seconds"]]


def _row(num_busy: int) -> str:
    with ExitStack() as stack:
        for _ in range(num_busy):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY]))
            stack.callback(busy.kill)
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCKSTEP_DIR": folder, "LOCKSTEP_JOB_ID": "bench"}
        command = [sys.executable, "-c", _LOOP]
        loop = subprocess.Popen(command, env=os.environ | rank, stdout=subprocess.PIPE)
        stack.enter_context(loop)
        stack.callback(loop.kill)
        assert loop.stdout is not None
        loop.stdout.readline()
        parts, before = [_cost(loop.pid)], 0
        for seconds in (0.04, 0.02):
            stopped, seen = _stop(loop.pid, seconds), _seen(Path(folder))[before:]
            before += len(seen)
            parts.append(f"{len(seen)} of {_STOPS}, {sum(seen) / stopped:.0%}")
    return f"| {num_busy} | {' | '.join(parts)} |"


def main() -> None:
    """Prints a row for each number of busy processes."""
    print(f"{platform.machine()}, {os.cpu_count()} cores\n")
    print("| busy processes | of a core | wake-ups a second | us each "
          "| of stops of 40 ms: seen, of their time | of 20 ms |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- |")
    for num_busy in (0, 2, 6):
        print(_row(num_busy), flush=True)


if __name__ == "__main__":
    main()
