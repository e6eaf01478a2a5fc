"""What a million questions to the kernel cost: whether a rank runs, and its pid here.

``python bench/node_agent/liveness.py``; the holder is a process in a PID namespace of its own where
that is allowed. Prints microseconds of processor time a question, median of ten blocks.
"""

import fcntl
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lockstep_records.page.liveness import find_process, is_running
from lockstep_records.page.lock import holder_of
from lockstep_records.page.reader import read_page

_QUESTIONS, _BLOCKS = 1_000_000, 10
_FLOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_PROC = Path("/proc")
_RANK = """
import sys, time
from pathlib import Path
from lockstep_records.page.writer import PageWriter, RankIdentity
writer = PageWriter(Path(sys.argv[1]), RankIdentity(job_id="bench", rank=0, world_size=1))
print("ready", flush=True)
time.sleep(3600)
"""


def microseconds(question: Callable[[], object], count: int) -> float:
    """Median over the blocks of the time that one question takes."""
    blocks = []
    for _ in range(_BLOCKS):
        begin = time.process_time()
        for _ in range(count // _BLOCKS):
            question()
        blocks.append((time.process_time() - begin) / (count // _BLOCKS) * 1e6)
    return statistics.median(blocks)


def _ask(descriptor: int) -> bytes:
    return fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK)


def main() -> None:
    """Measures and prints."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-bench-", dir="/dev/shm"))
    path = folder / "rank-00000.page"
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    may = subprocess.run([*unshare, "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0
    command = [*(unshare if may else []), sys.executable, "-c", _RANK, str(path)]
    rank = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert rank.stdout is not None
    rank.stdout.readline()
    page, descriptor = read_page(path), os.open(path, os.O_RDONLY)
    pid, started_ns = os.getpid(), time.monotonic_ns()
    print(f"holder in a PID namespace of its own: {'yes' if may else 'no'}")
    for name, question, count in (
        ("F_GETLK on an open page", lambda: _ask(descriptor), _QUESTIONS),
        ("holder_of: open, ask, close", lambda: holder_of(path), _QUESTIONS),
        ("find_process, as the agent asks", lambda: find_process(page), _QUESTIONS // 10),
        ("by /proc, as before", lambda: is_running(_PROC, pid, started_ns), _QUESTIONS // 10),
    ):  # fmt: skip
        print(f"{name:<34} {microseconds(question, count):6.2f} us, {count:,} questions")
    os.close(descriptor)
    rank.kill()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
