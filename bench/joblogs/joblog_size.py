"""Reads a made log of a given size; prints its speed in MiB per second and its peak memory.

python bench/joblogs/joblog_size.py [GIGABYTES]
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep_outcomes.joblogs.judging.outcome import judge_log
from lockstep_outcomes.joblogs.reading.read import read_log

RANKS, MIB = 64, 1 << 20
ORDINARY = (
    "[rank{rank}]:[W304 10:00:01.000000 socket.cpp:752] client connected to peer {number}\n",
    "{rank}: gpu-{rank}:4021:4077 [0] NCCL INFO Channel {number}/0 : 0[0] -> 1[0] via P2P/IPC\n",
    "{rank}:   warnings.warn(f'layer {number} falls back to the slow path of its kernel')\n",
    "{rank}: 2025-03-04 10:00:01,250 INFO loader: shard {number} opened, 4096 samples, warm\n",
)
STEP = "0: 2025-03-04 {hour:02d}:{minute:02d}:{second:02d}.250 step: {number} loss: 3 tps: 9\n"
LAST = "[rank7]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n"


def lines(size: int) -> Iterator[str]:
    """Ordinary output of 64 ranks, one line in a hundred of them a step, and a cause at the end."""
    written, number = 0, 0
    while written < size:
        number += 1
        second = number // 50
        line = (
            STEP.format(
                number=number,
                hour=second // 3600 % 24,
                minute=second // 60 % 60,
                second=second % 60,
            )
            if number % 100 == 0
            else ORDINARY[number % 4].format(rank=number % RANKS, number=number)
        )
        written += len(line)
        yield line
    yield LAST


def main() -> None:
    """Writes the log, reads it and prints the figures."""
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else "1") * 1024) * MIB
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        with path.open("w") as file:
            file.writelines(lines(size))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began, busy = time.perf_counter(), time.process_time()
        log = read_log(path)
        took, busy = time.perf_counter() - began, time.process_time() - busy
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    incident = judge_log(log)
    print(f"{log.size_bytes / MIB:,.0f} MiB, {log.lines:,} lines: {took:.1f} s, "
          f"{log.size_bytes / MIB / took:.0f} MiB/s; {busy:.1f} s of a processor, "
          f"{log.size_bytes / MIB / busy:.0f} MiB/s")  # fmt: skip
    print(f"largest memory: {after / 1024:.0f} MiB (before reading {before / 1024:.0f})")
    print(f"{len(log.step_seconds):,} steps; {incident.outcome}, {incident.blame} {incident.ranks}")


if __name__ == "__main__":
    main()
