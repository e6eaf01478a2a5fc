"""The end of a rank that ``multiprocessing`` started is on its page: nobody else prints it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import read_page

SCRIPT = """
import multiprocessing, os, sys
import lockstep

def train(root, ending):
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCKSTEP_JOB_ID="job-a")
    monitor = lockstep.attach(root=root)
    monitor.step()
    try:
        if ending != "returns":
            raise RuntimeError("a user's own mistake")
    except RuntimeError:
        if ending == "raises":
            raise
        sys.exit(1)  # as torch's spawn does

if __name__ == "__main__":
    method, *arguments = sys.argv[1:]
    process = multiprocessing.get_context(method).Process(target=train, args=arguments)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("ending", ["raises", "exits in the handler", "returns"])
def test_a_rank_of_multiprocessing_ends_as_its_loop_did(
    root: Path, tmp_path: Path, method: str, ending: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), method, str(root), ending]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    has_failed = ending != "returns"
    assert ended.returncode == has_failed, ended.stderr
    path = page_path(root, "job-a", 0, 0)
    assert read_page(path).phase == ("failed" if has_failed else "done")
    errors = [json.loads(error.read_text()) for error in path.parent.glob("*.error.json")]
    assert [error["message"] for error in errors] == ["a user's own mistake"] * has_failed
