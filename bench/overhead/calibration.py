"""How well the recorder's calibration says how long work takes on a core, and what it costs.

``calibration.py [SECONDS]``: one rank on each core, whose step trains a small network and then runs
the interpreter, each by its own clock of processor time. Per core: how long the work and the
calculation took in single seconds, how the two go together, and the power of the calculation's time
to which the work's is proportional (1: in proportion). Nothing else should run.
"""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from lockstep_records.page.reader import newest_rows, read_page

_DEFAULT_SECONDS = 120.0
_QUANTILES = (0.1, 0.5, 0.9)
_LOOP = """
import os, sys, time, torch, lockstep
core, seconds, path = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
os.sched_setaffinity(0, {core})
torch.set_num_threads(1)
layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)]
network, batch = torch.nn.Sequential(*layers), torch.randn(32, 256)
optimizer, monitor = torch.optim.AdamW(network.parameters()), lockstep.attach()
end, lines = time.monotonic() + seconds, []
while time.monotonic() < end:
    monitor.enter_phase("forward")
    begin = time.thread_time_ns()
    for _ in range(4):
        network(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = time.thread_time_ns()
    for number in range(100_000):
        pass
    lines.append(f"{time.monotonic()} {trained - begin} {time.thread_time_ns() - trained}")
    monitor.step()
    time.sleep(0.015)
with open(path, "w") as file:
    file.write("\\n".join(lines))
monitor.close()
"""


def _by_second(times: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Means over single seconds [seconds] of values [steps], or [steps, kinds]."""
    numbers = np.floor(times - times[0]).astype(int)
    return np.array([values[numbers == n].mean(axis=0) for n in range(1, numbers.max())])


def _report(core: int, root: Path, lines: Path) -> None:
    columns = np.loadtxt(lines)
    [path] = root.glob("**/*.page")
    page = read_page(path)
    rows = newest_rows(page, len(columns))
    calibrations = np.array([row["calibration_ns"] or np.nan for row in rows], np.float64)
    is_known = ~np.isnan(calibrations)
    both = np.column_stack([columns[: len(rows), 1:], calibrations])[is_known]
    seconds = _by_second(columns[: len(rows), 0][is_known], both)
    for kind, values in zip(("training", "interpreter"), seconds.T[:2], strict=True):
        work, calculation = np.log(values), np.log(seconds[:, 2])
        power = np.cov(work, calculation)[0, 1] / calculation.var(ddof=1)
        texts = (
            ", ".join(f"{value:.{digits}f}" for value in np.quantile(series, _QUANTILES))
            for series, digits in ((values / 1e6, 2), (seconds[:, 2] / 1e3, 2))
        )
        correlation = np.corrcoef(work, calculation)[0, 1]
        print(f"| {core} | {kind} | {' | '.join(texts)} | {correlation:.2f} | {power:.2f} |")


def main() -> None:
    """Runs a rank on each core and prints what the two times have to do with each other."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else _DEFAULT_SECONDS
    cores = sorted(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {len(cores)} cores, {seconds:.0f} s.\n")
    print("| core | work | ms a step: 10, 50, 90 % | calculation, us | correlation | power |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir="/dev/shm") as folder:
        running = []
        for core in cores:
            root, lines = Path(folder) / str(core), Path(folder) / f"{core}.txt"
            root.mkdir(mode=0o700)
            environment = os.environ | {"LOCKSTEP_DIR": str(root)}
            command = [sys.executable, "-c", _LOOP, str(core), str(seconds), str(lines)]
            running.append((core, root, lines, subprocess.Popen(command, env=environment)))
        for core, root, lines, process in running:
            process.wait()
            _report(core, root, lines)


if __name__ == "__main__":
    main()
