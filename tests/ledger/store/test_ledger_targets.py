"""Deadlines and declared tokens of running jobs: what the forecast of a deadline needs."""

from pathlib import Path
from typing import Any

from lockstep_catalogue import ledger
from lockstep_ledger.store.windows import count_windows
from lockstep_ledger.web.app import promised

from ..stories import BEGIN, Story
from .test_ledger_store import opened, write

PROMISE: dict[str, Any] = {
    "num_nodes": 1,
    "deadline_time": BEGIN + 86_400.0,
    "declared_tokens": 10**12,
}


def test_a_job_is_served_while_it_runs_and_declares_both(tmp_path: Path) -> None:
    running = Story(job_id="running").start(**PROMISE)
    ended = Story(job_id="ended").start(**PROMISE).after(60).end("succeeded")
    without = Story(job_id="without").start(num_nodes=1)
    with opened(f"sqlite:///{tmp_path / 'ledger.db'}") as writer:
        write(writer, running, ended, without)
        counts = count_windows(writer._engine, BEGIN + 100)
        later = count_windows(writer._engine, BEGIN + 60 + 86_400)
    assert later.ends == {}
    samples = promised(counts.targets)
    labels = (running.cluster, "running")
    ends = counts.ends
    assert ends == {(ended.cluster, "ended", "succeeded", "none"): BEGIN + 60}
    assert samples == {
        (ledger.JOB_DEADLINE.name, labels): BEGIN + 86_400.0,
        (ledger.JOB_TOKENS.name, labels): 1e12,
    }


def test_the_newest_jobs_are_served_where_there_are_too_many(tmp_path: Path) -> None:
    stories = [Story(job_id=f"job-{i:03}").start(**PROMISE) for i in range(ledger.MAX_TARGETS + 1)]
    with opened(f"sqlite:///{tmp_path / 'ledger.db'}") as writer:
        write(writer, *stories)
        targets = count_windows(writer._engine, BEGIN + 100).targets
    assert len(targets) == ledger.MAX_TARGETS
    assert "job-000" not in {target.job_id for target in targets}
