"""Processor time that reading the wait for a core adds to the end of a step.

``run_queue.py``: steps of 25 ms of other work, which fills the caches; every second one is of a
monitor that reads the kernel's file, the others of one that does not.
"""

import os
import platform
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from lockstep.recorder.native import new_recorder
from lockstep.recorder.recorder import StepRecorder
from lockstep_records.page.writer import PageWriter, RankIdentity

_STEPS = 200
_WORK_SECONDS = 0.025


class _Callbacks:
    def tick(self, now_ns: int) -> int:
        return now_ns + (1 << 60)

    def step_ended(self, *_: float) -> None:
        return


def _recorder(folder: Path, number: int, kind: str, descriptors: tuple[int, ...]) -> StepRecorder:
    identity = RankIdentity(job_id="bench", rank=number, world_size=4)
    create = StepRecorder if kind == "Python" else new_recorder
    page = PageWriter(folder / f"{number}.page", identity, 1024)
    recorder = create(page, _Callbacks())  # type: ignore[arg-type]  # what a step calls
    recorder.watch_run_queue(descriptors)
    return recorder


def _step_ns(recorder: StepRecorder, values: np.ndarray) -> int:
    end = time.thread_time() + _WORK_SECONDS
    while time.thread_time() < end:
        values += 1.0  # 32 MB: nothing of ours stays in a cache
    begin = time.thread_time_ns()
    recorder.step()
    return time.thread_time_ns() - begin


def main() -> None:
    """Prints medians of a step with and without the read, by recorder."""
    descriptor = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
    values = np.zeros(1 << 22)
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
          f"{_STEPS} steps of {1e3 * _WORK_SECONDS:.0f} ms each\n")  # fmt: skip
    print("| recorder | step without, us | with, us | added, us (quartiles) |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir="/dev/shm") as folder:
        for number, kind in enumerate(("C", "Python")):
            bare = _recorder(Path(folder), 2 * number, kind, ())
            reading = _recorder(Path(folder), 2 * number + 1, kind, (descriptor,))
            pairs = [
                (_step_ns(bare, values), _step_ns(reading, values)) for _ in range(_STEPS // 2)
            ]
            without, with_read = (
                statistics.median(side) / 1e3 for side in zip(*pairs, strict=True)
            )
            added = statistics.quantiles([(b - a) / 1e3 for a, b in pairs], n=4)
            print(f"| {kind} | {without:.1f} | {with_read:.1f} "
                  f"| {added[1]:.1f} ({added[0]:.1f} to {added[2]:.1f}) |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
