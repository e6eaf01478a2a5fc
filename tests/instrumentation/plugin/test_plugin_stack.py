"""A job without a line of ours, in the whole stack: its hang is paged with rank and node."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent.jobs.ras_ranks import RasJob, agent_program, nccl_library
from servers import free_port, wait_until

from lockstep_catalogue import recorded, training
from lockstep_catalogue.promql import eq, select
from lockstep_prometheus.client import Prometheus

from .ranks import start_ranks

LOCKSTEP = (sys.executable, "-m", "lockstep_cli.main")
MISSING = 2


def lockstep(*words: object) -> str:
    command = [*LOCKSTEP, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def watched(root: Path, folder: Path, program: Sequence[str] = LOCKSTEP) -> Iterator[Path]:
    """An agent of the node, Prometheus, Alertmanager and the pager; the pages of the latter."""
    address = f"127.0.0.1:{free_port()}"
    options = ("--dir", str(root), "--state", str(folder / "state"), "--node", "node-7")
    intervals = ("--tick", "1s", "--hang-timeout", "5s")
    agent = subprocess.Popen(
        [*program, "agent", "--listen", address, *options, *intervals], stderr=subprocess.DEVNULL
    )
    try:
        fast = ("--interval", "1s", "--group-interval", "1s")
        lockstep("stack", "up", "--dir", folder / "stack", "--target", address, *fast)
        try:
            yield folder / "stack" / "pages.jsonl"
        finally:
            lockstep("stack", "down", "--dir", folder / "stack")
    finally:
        agent.kill()
        agent.wait()


def firing(pages: Path, seconds: float, job_id: str = "job") -> list[dict[str, Any]]:
    """The alerts of the first page of a job."""

    def alerts() -> list[dict[str, Any]]:
        lines = pages.read_text(encoding="utf-8").splitlines() if pages.exists() else []
        of_job = [p for p in map(json.loads, lines) if p["group_labels"].get("incident") == job_id]
        found: list[dict[str, Any]] = of_job[0]["alerts"] if of_job else []
        return found

    return wait_until(alerts, seconds, lambda: pages.exists() and pages.read_text(), pause=0.5)


@pytest.mark.server
@pytest.mark.timeout(240)
def test_a_hang_without_a_line_is_paged_within_a_minute_with_rank_and_node(
    root: Path, tmp_path: Path
) -> None:
    named = {"LOCKSTEP_NODE": "node-7"}
    with (
        watched(root, tmp_path) as pages,
        start_ranks(root, ranks=8, steps=1000, environment=named, hang_rank=MISSING, hang_step=400),
    ):
        text = json.dumps(firing(pages, 60))
        state = json.loads((tmp_path / "stack" / "stack.json").read_text(encoding="utf-8"))
        job, board = root / "jobs" / "job", tmp_path / "board.html"
        signs = ("--signs-from", state["prometheus"]["url"], "--board", board)
        report = json.loads(lockstep("report", job, "--json", "-", *signs))
        jobs = lockstep("jobs", "--dir", root)
        with Prometheus(state["prometheus"]["url"]) as server:
            of_plugin = select(training.JOB_SEEN, eq(training.SEEN_BY, "plugin"))
            seen = server.instant(of_plugin, time.time())
            unobserved = server.instant(select(recorded.UNOBSERVED), time.time())
    assert f"rank {MISSING}" in text
    assert "node-7" in text
    assert "NCCL's plugin alone tells of this job" in " ".join(report["notes"])
    assert "job" in jobs
    assert (len(seen), unobserved) == (1, [])
    assert "Lockstep: job</h1>" in board.read_text(encoding="utf-8")


@pytest.mark.server
@pytest.mark.timeout(300)
def test_a_hang_that_only_the_socket_of_nccl_shows_is_paged_with_rank_node_and_communicator(
    root: Path, tmp_path: Path
) -> None:
    # Another test's job of that name, on this machine and of another user, would be it.
    job_id = f"job-{os.getpid()}"
    with RasJob(nccl_library(), TORCHELASTIC_RUN_ID=job_id) as job:
        job.says("A: 5 5 5 5 5 5 5 5", "A: 9 9 8 9 9 9 9 9")
        # At the shipped periods: two answers that are alike take half a minute.
        with watched(root, tmp_path, agent_program(30.0, 15.0)) as pages:
            text = json.dumps(firing(pages, 180, job_id))
            paged_seconds = time.monotonic() - job.asked_seconds[1]
    assert f"rank {MISSING} on node-7" in text
    assert f"communicator {ord('A'):016x}" in text
    assert paged_seconds < 60, paged_seconds
