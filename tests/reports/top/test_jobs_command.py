"""``lockstep jobs`` lists the jobs of the node with their state, ranks, last step and verdict."""

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lockstep_records.events.event import Event, append_event
from lockstep_reports.jobs_command import jobs

from ..synthetic_job import Slow, SyntheticJob


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(jobs, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def test_jobs_are_listed_newest_first_with_their_verdict(page_root: Path) -> None:
    SyntheticJob(job_id="zz-old", slow=(Slow(rank=2),)).write(page_root)
    for kind, seconds in (("job_started", 5.0), ("job_finished", 9.0)):
        fields = {"outcome": "failed"} if kind == "job_finished" else {}
        event = Event(kind=kind, job_id="zz-old", attempt=0, time=seconds, fields=fields)
        append_event(page_root / "jobs" / "zz-old", event)
    SyntheticJob(job_id="aa-new").write(page_root)
    newest, oldest = run().output.splitlines()[1:3]
    assert newest.split()[0] == "aa-new"
    assert oldest.split()[:2] == ["zz-old", "failed"]
    assert "ank 2" in run().output
    assert "ank 2" not in run("--no-verdict").output
    assert "zz-old" not in run("--count", "1", "--no-verdict").output


def test_what_is_unknown_is_absent_from_the_json(page_root: Path) -> None:
    (page_root / "jobs" / "empty").mkdir(parents=True)
    [document] = json.loads(run("--json").output)
    assert document["job_id"] == "empty"
    assert document["state"] == "starting"
    assert not {"outcome", "last_step", "headline", "end_seconds"} & set(document)


def test_a_node_without_jobs_says_so(tmp_path: Path) -> None:
    assert run("--dir", str(tmp_path)).output == f"no jobs under {tmp_path}/jobs\n"
    assert json.loads(run("--dir", str(tmp_path), "--json").output) == []


@pytest.mark.parametrize("has_event", [True, False])
def test_a_job_without_a_launcher_began_with_its_first_page(
    page_root: Path, has_event: bool
) -> None:
    folder, birth = SyntheticJob(num_steps=20).write(page_root), time.time()
    # Files that ranks leave when they end, and what they say then, come after the steps.
    os.utime(folder / "0", (birth + 60, birth + 60))
    if has_event:
        event = Event(kind="job_resumed", job_id=folder.name, attempt=0, time=birth + 60, fields={})
        append_event(folder, event)
    [document] = json.loads(run("--json", "--no-verdict").output)
    assert document["start_seconds"] == pytest.approx(birth, abs=10)
