"""Runs the scripts of docs/examples with one slow rank and prints whom the report names.

python bench/examples/examples.py                         # the whole matrix
python bench/examples/examples.py ddp:run:data:1 ...      # script:launcher:phase:rank
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep_cli.small_server import free_port
from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import read_page, read_rows

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SLOW_RANK = Path(__file__).with_name("slow_rank.py")
LAUNCHERS = {
    "ddp": ("run", "torchrun"),
    "transformers_trainer": ("run", "torchrun", "accelerate"),
    "lightning_trainer": ("run", "torchrun", "lightning"),
    "accelerate_loop": ("run", "torchrun", "accelerate"),
    "fsdp2_dcp": ("run", "torchrun"),
}
JOB_ID, STEPS, SLOW_SECONDS = "job-a", 40, 0.03
PHASES = ("data", "forward", "backward", "sync", "optimizer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run: a script under a launcher with a rank that is slow in a phase."""

    script: str
    launcher: str
    phase: str
    rank: int

    def __str__(self) -> str:
        return f"{self.script}:{self.launcher}:{self.phase}:{self.rank}"

    def command(self, root: Path) -> list[str]:
        """The command line of the launcher, with two ranks."""
        script = [str(SLOW_RANK), "--steps", str(STEPS), "--out", str(root / "checkpoints")]
        if self.launcher == "run":
            lockstep = [sys.executable, "-m", "lockstep_cli.main", "run", "--job-id", JOB_ID]
            return [*lockstep, "--nproc-per-node", "2", *script]
        if self.launcher == "torchrun":
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
            return [*torchrun, "--master-port", str(free_port()), *script]
        if self.launcher == "accelerate":
            # The flag means several ranks; the script takes the CPU without a GPU.
            accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
            port = ["--main_process_port", str(free_port())]
            return [*accelerate, "--num_processes", "2", *port, *script]
        return [sys.executable, *script]

    def environment(self, root: Path) -> dict[str, str]:
        """The variables of the run; its folder is on a tmpfs."""
        inherited = {name: value for name, value in os.environ.items() if name != "RANK"}
        return inherited | {
            "LOCKSTEP_DIR": str(root),
            "LOCKSTEP_JOB_ID": JOB_ID,
            "OMP_NUM_THREADS": "1",
            "SLOW_SCRIPT": str(EXAMPLES / f"{self.script}.py"),
            "SLOW_PHASE": self.phase,
            "SLOW_RANK": str(self.rank),
            "SLOW_SECONDS": str(SLOW_SECONDS),
        }


@contextmanager
def job_root() -> Iterator[Path]:
    """A folder for one job, on a tmpfs."""
    root = Path(tempfile.mkdtemp(prefix="lockstep-examples-", dir="/dev/shm"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run_cell(cell: Cell) -> str:
    """The verdict as ``rank N in PHASE``; else what went wrong."""
    with job_root() as root:
        environment = cell.environment(root)
        done = subprocess.run(
            cell.command(root),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        if done.returncode:
            # The beginning says what ended a rank, the end what the launcher says of it.
            return f"exit status {done.returncode}: {done.stderr[:3000]} ... {done.stderr[-1000:]}"
        report = [sys.executable, "-m", "lockstep_cli.main", "report", "--json", "-", JOB_ID]
        read = subprocess.run(
            report, env=environment, capture_output=True, text=True, check=False, timeout=200
        )
        if read.returncode:
            return f"no report: {read.stderr[-2000:]}"
        if "Server listening" in done.stderr:
            return "torch's worker server is in the log"
        is_announced = "its report: lockstep report" in done.stderr
        if is_announced != (cell.launcher != "run"):
            return f"rank 0 names the job: {is_announced}"
        return fault_of_pages(root) or verdict_of(json.loads(read.stdout))


def fault_of_pages(root: Path) -> str:
    """What is missing in the pages of the ranks; empty where every step has all its phases."""
    for rank in (0, 1):
        page = read_page(page_path(root, JOB_ID, 0, rank))
        if (page.phase, page.state["steps"]) != ("done", STEPS):
            return f"rank {rank} is {page.phase} after {page.state['steps']} steps"
        for row in read_rows(page):
            missing = [name for name in PHASES if not row["phase_seconds"][name] > 0]
            if missing:
                return f"step {row['step']} of rank {rank} has no {missing[0]}"
    return ""


def verdict_of(report: dict[str, object]) -> str:
    """The verdict of a report in JSON."""
    verdict = report["verdict"]
    assert isinstance(verdict, dict)
    ranks = ", ".join(map(str, verdict["ranks"]))
    if not ranks:
        return f"{verdict['kind']}: {' '.join(verdict['evidence'])}"
    return f"{verdict['kind']} {ranks} in {verdict['phase']}"


def all_cells() -> list[Cell]:
    """Every script under every launcher, slow in the loader and in the forward."""
    return [
        Cell(script=script, launcher=launcher, phase=phase, rank=rank)
        for script, launchers in LAUNCHERS.items()
        for launcher in launchers
        for phase, rank in (("data", 1), ("forward", 0))
    ]


def main() -> int:
    """Prints a row a run; 1 where a verdict is wrong."""
    cells = [
        Cell(script=script, launcher=launcher, phase=phase, rank=int(rank))
        for script, launcher, phase, rank in (text.split(":") for text in sys.argv[1:])
    ] or all_cells()
    print("| script | launcher | slow | verdict | right | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    num_wrong = 0
    for cell in cells:
        began = time.monotonic()
        slow, verdict = f"rank {cell.rank} in {cell.phase}", run_cell(cell)
        num_wrong += verdict != slow
        seconds = time.monotonic() - began
        right = "yes" if verdict == slow else "no"
        row = (cell.script, cell.launcher, slow, verdict, right, f"{seconds:.0f}")
        print("|", " | ".join(row), "|", flush=True)
    print(f"\n{len(cells) - num_wrong} of {len(cells)} right")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
