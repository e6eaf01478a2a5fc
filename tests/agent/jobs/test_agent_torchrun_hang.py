"""Ranks that plain torchrun started, one of which stops: an agent on the node names it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from servers import wait_until

from lockstep_agent.collectors.jobs.hangs import Hangs
from lockstep_agent.jobs.page_store import PageStore
from lockstep_catalogue import training
from lockstep_outcomes.progress.hangs import HangTimeouts
from lockstep_records.files.jobs import job_folder, newest_pages
from lockstep_records.page.reader import Page

LOOP = """
import torch, torch.distributed as dist, lockstep
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
monitor = lockstep.attach(model, optimizer)
while True:
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.step()
"""
TIMEOUT_SECONDS = 5.0
PROC = Path("/proc")


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_the_rank_of_a_plain_torchrun_that_stopped_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    environment = {"LOCKSTEP_JOB_ID": "plain", "LOCKSTEP_DIR": str(root), "OMP_NUM_THREADS": "1"}
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    agent = Hangs(PageStore(root, PROC), "node-7", PROC, HangTimeouts(step_seconds=TIMEOUT_SECONDS))
    with subprocess.Popen(
        [sys.executable, *command, str(tmp_path / "loop.py")],
        env=os.environ | environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as launcher:
        try:
            wait_until(lambda: [page.state["steps"] > 10 for page in pages(root)] == [True] * 2, 60)
            assert hang_values(agent) == {training.HUNG_RANKS: 0}
            os.kill(pages(root)[1].identity["pid"], signal.SIGSTOP)
            wait_until(lambda: hang_values(agent).get(training.HUNG_RANKS) == 2, 30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            for page in pages(root):  # torchrun gives each rank a session of its own
                with suppress(ProcessLookupError):
                    os.kill(page.identity["pid"], signal.SIGKILL)
    [event] = json.loads(agent.recent.json)
    assert event["facts"]["missing"] == "1"
    assert "rank 0 in sync" in event["text"]


def pages(root: Path) -> list[Page]:
    job = job_folder(root, "plain")
    return newest_pages(job) if job.is_dir() else []


def hang_values(agent: Hangs) -> dict[object, object]:
    return {reading.metric: reading.value for reading in agent.collect()}
