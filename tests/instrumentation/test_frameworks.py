"""Two ranks trained by each framework: work and synchronisation are separate in every step."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_records.page.reader import read_page, read_rows

from .frameworks_loop import STEPS
from .frameworks_loop import __file__ as loop


@pytest.fixture(name="root")
def _root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.distributed
@pytest.mark.timeout(150)
@pytest.mark.parametrize("framework", ["transformers", "lightning", "accelerate"])
def test_each_rank_of_a_framework_records_work_and_synchronisation_separately(
    framework: str, root: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "lockstep_cli.main", "run", "--dir", str(root)]
    job = ["--job-id", "job-a", "--nproc-per-node", "2", loop, framework, str(tmp_path)]
    done = subprocess.run(
        [*command, *job], capture_output=True, text=True, check=False, timeout=140
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        page = read_page(root / "jobs" / "job-a" / "0" / f"rank-{rank:05d}.page")
        assert page.phase == "done"
        assert page.state["steps"] == STEPS
        assert page.state["collectives"]["all_reduce"] >= STEPS
        for row in read_rows(page):
            for phase in ("data", "forward", "backward", "sync", "optimizer"):
                assert row[f"{phase}_seconds"] > 0, phase
