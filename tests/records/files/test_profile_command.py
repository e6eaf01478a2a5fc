"""``lockstep profile`` says at once when there is no step to come that it could trace."""

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from lockstep.commands.profile import profile
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import PHASES
from lockstep_records.page.writer import PageWriter, RankIdentity


def written_job(root: Path, *phases: str) -> Path:
    """A job with a page for each of its ranks, that stands in a phase."""
    for rank, phase in enumerate(phases):
        path = page_path(root, "job-a", 0, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        identity = RankIdentity(job_id="job-a", rank=rank, world_size=len(phases))
        page = PageWriter(path, identity, rows=4)
        page.heartbeat(time.monotonic_ns(), PHASES.index(phase))
        page.commit(time.monotonic_ns())
        page.close()
    return root / "jobs" / "job-a"


def write_events(job: Path, *kinds: str) -> None:
    for kind in kinds:
        append_event(job, Event(kind=kind, job_id="job-a", attempt=0))


@pytest.mark.parametrize(
    ("phases", "events"),
    [
        (("done", "done"), ()),
        (("failed", "done"), ("job_started",)),
        (("backward", "sync"), ("job_started", "job_finished")),
        ((), ("job_started", "job_finished")),
    ],
    ids=["all done", "all ended", "killed, as its launcher tells", "no page is left"],
)
def test_a_job_that_has_ended_is_refused_in_one_sentence(
    memory: Path, phases: tuple[str, ...], events: tuple[str, ...]
) -> None:
    job = written_job(memory, *phases)
    job.mkdir(parents=True, exist_ok=True)
    write_events(job, *events)
    refused = CliRunner().invoke(profile, [str(job) if phases else "job-a"], env=_at(memory))
    assert refused.exit_code == 2, refused.output
    (line,) = [line for line in refused.output.splitlines() if line.startswith("Error")]
    assert line == (
        "Error: job job-a has ended, and only steps to come are traced; name one that runs"
    )
    assert not (job / "switches.json").exists()


def test_a_job_that_was_started_again_gets_the_request(memory: Path) -> None:
    job = written_job(memory, "forward")
    write_events(job, "job_started", "job_finished", "job_started")
    result = CliRunner().invoke(profile, [str(job), "--wait", "1s"], standalone_mode=False)
    assert (result.return_value, result.output) == (
        1,
        "rank 0: no answer within 1 s; does it still step?\n",
    )


def test_of_a_job_with_ended_ranks_only_the_others_get_the_request(memory: Path) -> None:
    job = written_job(memory, "done", "forward", "failed")
    result = CliRunner().invoke(profile, [str(job), "--wait", "1s"], standalone_mode=False)
    assert result.return_value == 1
    assert "rank 1: no answer" in result.output
    assert "rank 0" not in result.output
    refused = CliRunner().invoke(profile, [str(job), "--ranks", "0,1"])
    assert refused.exit_code == 2
    assert "--ranks: not all of them run on this node; here: 1" in refused.output


def test_a_job_whose_ranks_have_yet_to_come_has_not_ended(memory: Path) -> None:
    job = written_job(memory)
    (job / "0").mkdir(parents=True)
    write_events(job, "job_started")
    refused = CliRunner().invoke(profile, [str(job)])
    assert refused.exit_code == 2
    assert "--ranks: not all of them run on this node; here: none" in refused.output


def _at(root: Path) -> dict[str, str]:
    return {"LOCKSTEP_DIR": str(root)}
