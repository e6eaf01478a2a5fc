"""Jobs without our launcher, and those whose launcher was killed, are told by their pages."""

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep_agent.jobs import unreported
from lockstep_agent.jobs.unreported import UnreportedJobs
from lockstep_records.events.event import Event, append_event, check_event
from lockstep_records.files.jobs import job_folder, page_path
from lockstep_records.page.layout import PHASES
from lockstep_records.page.writer import PageWriter, RankIdentity


class Node:
    """Ranks of this process, and a watch with a clock that a test sets forward."""

    def __init__(self, root: Path) -> None:
        self.root, self.ahead_seconds = root, 0.0
        self.watch = UnreportedJobs(root, clock=self.now)
        self.pages: list[PageWriter] = []

    def now(self) -> float:
        return time.time() + self.ahead_seconds

    def start(self, attempt: int = 0, num_ranks: int = 2) -> None:
        for rank in range(num_ranks):
            identity = RankIdentity(
                job_id="job", rank=rank, world_size=num_ranks, attempt=attempt, project="llm"
            )
            self.pages.append(PageWriter(page_path(self.root, "job", attempt, rank), identity, 4))

    def end(self, phase: str | None = None) -> None:
        for page in self.pages:
            page.commit(time.monotonic_ns())
            if phase is not None:
                page.heartbeat(time.monotonic_ns(), PHASES.index(phase))
            page.close()
        self.pages.clear()

    def poll(self, seconds: float = 6.0) -> list[Event]:
        self.ahead_seconds += seconds
        events = self.watch.poll()
        for event in events:
            assert check_event(event.document(), now_seconds=self.now()) == event
        return events

    def kinds(self, seconds: float = 6.0) -> list[str]:
        return [event.kind for event in self.poll(seconds)]

    def write(self, kind: str, **fields: Any) -> None:
        append_event(
            job_folder(self.root, "job"), Event(kind=kind, job_id="job", attempt=0, fields=fields)
        )


@pytest.fixture(name="node")
def _node(memory: Path) -> Node:
    return Node(memory)


def test_a_job_of_plain_torchrun_starts_reports_goodput_and_ends(node: Node) -> None:
    assert node.poll() == []
    node.start()
    assert node.kinds() == ["job_started", "attempt_started", "goodput"]
    assert node.kinds() == []
    assert node.kinds(61) == ["goodput"]
    node.end("done")
    assert node.kinds() == []
    events = node.poll(61)
    assert [event.kind for event in events] == ["goodput", "attempt_ended", "job_finished"]
    assert events[-1].fields["outcome"] == "succeeded"
    assert events[-1].time < node.now() - 60
    assert node.poll() == []


def test_a_restart_of_torchrun_is_another_attempt_of_the_job(node: Node) -> None:
    node.start()
    node.poll()
    node.end()
    assert node.kinds(20) == []
    node.start(attempt=1)
    events = node.poll()
    assert [(event.kind, event.attempt) for event in events if event.kind != "goodput"] == [
        ("attempt_started", 1)
    ]


def test_ranks_that_vanish_without_a_word_leave_an_unknown_outcome(node: Node) -> None:
    node.start()
    node.poll()
    node.end()
    node.poll()
    end = node.poll(61)[-1]
    assert (end.kind, end.fields["outcome"]) == ("job_finished", "unknown")


def test_an_agent_that_starts_again_tells_the_same_events(node: Node) -> None:
    node.start()
    first = {event.kind: event.id for event in node.poll() if event.kind != "goodput"}
    again = UnreportedJobs(node.root, clock=node.now)
    assert first == {e.kind: e.id for e in again.poll() if e.kind != "goodput"}


def test_a_job_that_a_launcher_reports_is_left_to_it(node: Node) -> None:
    node.write("job_started")
    node.write("attempt_started", ranks=[0, 1])
    node.start()
    assert node.kinds() == []
    node.end("done")
    node.write("job_finished", outcome="succeeded")
    assert node.kinds() == []
    assert node.kinds(3600) == []


def test_the_end_of_a_job_whose_launcher_was_killed_is_told_by_events_and_pages(node: Node) -> None:
    node.write("job_started")
    node.write("attempt_started", ranks=[0, 1])
    node.start()
    lock = job_folder(node.root, "job") / "launcher.lock"
    lock.write_text("")
    node.write("rank_ended", rank=1, exit_code=-9, signal="SIGKILL", first=True)
    assert node.kinds(3600) == [], "its ranks still run"
    node.end()
    assert node.kinds() == []
    events = node.poll(61)
    assert [event.kind for event in events] == ["goodput", "attempt_ended", "job_finished"]
    assert (events[-1].fields["cause"], events[-1].fields["cause_ranks"]) == ("killed", [1])


def test_a_launcher_that_lives_is_waited_for(node: Node) -> None:
    node.write("job_started")
    node.start()
    node.end()
    lock = job_folder(node.root, "job") / "launcher.lock"
    lock.write_text("")
    # A lock of this process itself would not be seen.
    begun, over = os.pipe()
    child = os.fork()
    if child == 0:
        descriptor = os.open(lock, os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 0)
        os.write(over, b"x")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(begun, 1)
        assert node.kinds() == []
        assert node.kinds(3600) == []
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(begun)
        os.close(over)
    assert node.kinds() == []
    assert "job_finished" in node.kinds(61)


def test_gpus_that_are_allocated_and_have_no_rank_are_idle(node: Node) -> None:
    node.watch = UnreportedJobs(node.root, clock=node.now, num_gpus_of=lambda _: 8)
    node.start()
    *_, goodput = node.poll()
    assert (goodput.fields["num_gpus"], goodput.fields["num_ranks"]) == (8, 8)
    node.poll(61)
    seconds = node.poll(61)[-1].fields["rank_seconds"]
    assert seconds["idle"] / 6 == pytest.approx(node.ahead_seconds, abs=60)


def test_a_page_speaks_for_the_job_of_its_folder_alone(node: Node) -> None:
    node.start()
    job_folder(node.root, "job").rename(job_folder(node.root, "evil"))
    assert node.poll() == []


def test_a_job_whose_pages_cannot_be_judged_costs_its_own_events_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.start()
    poll = UnreportedJobs._poll

    def fail(watch: UnreportedJobs, folder: Path, *rest: Any) -> Any:
        if folder.name == "evil":
            raise OverflowError("int too large to convert to float")
        return poll(watch, folder, *rest)

    monkeypatch.setattr(UnreportedJobs, "_poll", fail)
    job_folder(node.root, "evil").mkdir()
    assert node.kinds() == ["job_started", "attempt_started", "goodput"]
    node.poll()
    assert len([r for r in caplog.records if "unreported=fails job=evil" in r.getMessage()]) == 1


@pytest.mark.parametrize(
    ("names", "num_gpus"),
    [
        (["SLURM_JOB_ID", "PATH"], 0),
        (["SLURM_JOB_ID", "SLURM_GPUS_ON_NODE"], None),
        (["SLURM_JOB_ID", "SLURM_JOB_GPUS"], None),
        (["PATH"], None),
    ],
)
def test_ranks_to_which_slurm_gave_no_gpu_hold_none(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str],
    num_gpus: int | None,
) -> None:  # fmt: skip
    process = tmp_path / "proc" / str(os.getpid())
    process.mkdir(parents=True)
    (process / "environ").write_text("\0".join(f"{name}=1" for name in names))
    monkeypatch.setattr(unreported, "_PROC", process.parent)
    node.start()
    goodput = next(event for event in node.poll() if event.kind == "goodput")
    assert goodput.fields.get("num_gpus") == num_gpus
    node.end("done")
