"""A launcher that a signal stops blames no rank, in its events and in its last line."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from servers import wait_until

from lockstep_records.events.event import read_events
from lockstep_records.files.jobs import job_folder, newest_pages

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]
LOOP = """
import time
import lockstep
monitor = lockstep.attach()
while True:
    monitor.enter_phase("forward")
    time.sleep(0.01)
    monitor.step()
"""
RANKS = 2


def test_a_launcher_that_is_interrupted_blames_no_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    with tempfile.TemporaryDirectory(prefix="lockstep-test-", dir="/dev/shm") as root:
        job = job_folder(Path(root), "one")
        command = [sys.executable, "-m", "lockstep_cli.main", "run", "--job-id", "one"]
        command += ["--dir", root, "--nproc-per-node", str(RANKS), str(script)]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        ) as launcher:
            wait_until(lambda: job.is_dir() and _all_step(job), 120, launcher.poll, pause=0.1)
            launcher.send_signal(signal.SIGINT)
            _, stderr = launcher.communicate(timeout=100)
        events = read_events(job)
    assert not [event for event in events if event.fields.get("first")]
    end = events[-1].fields
    assert (end["outcome"], end["cause"], end["cause_ranks"]) == ("cancelled", "cancelled", [])
    last = stderr.splitlines()[-1]
    assert last.startswith("lockstep: job one: The job was cancelled: ")
    assert "rank" not in last


def _all_step(job: Path) -> bool:
    """Whether every rank has completed a step."""
    pages = newest_pages(job)
    return len(pages) == RANKS and all(page.state["step"] is not None for page in pages)
