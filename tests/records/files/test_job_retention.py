"""Jobs leave the tmpfs by time of end and by size, and never before an archive has them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from lockstep_records.events.event import Event, append_event
from lockstep_records.files.job_status import (
    ARCHIVED,
    JobStatus,
    archived_jobs,
    note_archive,
    read_status,
    read_statuses,
    remove_ended_jobs,
    to_remove,
)
from lockstep_records.files.jobs import list_jobs, page_path
from lockstep_records.page.layout import PHASES
from lockstep_records.page.writer import PageWriter, RankIdentity


def status(job_id: str, end_seconds: float | None, state: str = "ended") -> JobStatus:
    return JobStatus(
        folder=Path("jobs", job_id), state=state, outcome=None, start_seconds=0.0,  # type: ignore[arg-type]  # a literal
        end_seconds=end_seconds, attempts=1, ranks=1, world_size=1, last_step=None, size_bytes=10,
    )  # fmt: skip


def removed(
    *statuses: JobStatus,
    max_jobs: int = 9,
    max_bytes: int = 1000,
    archived: frozenset[str] | None = None,
) -> list[str]:
    folders = to_remove(
        statuses, max_jobs=max_jobs, max_bytes=max_bytes, archived=archived, now_seconds=10_000.0
    )
    return [folder.name for folder in folders]


def test_the_job_that_ended_first_goes_first_whatever_its_name() -> None:
    jobs = status("z", 1.0), status("a", 3.0), status("m", 2.0)
    assert removed(*jobs, max_jobs=1) == ["z", "m"]
    assert removed(*jobs, max_bytes=20) == ["z"]
    assert removed(*jobs) == []


def test_a_job_that_runs_stays_and_one_that_is_gone_stays_for_an_hour() -> None:
    jobs = status("run", None, "running"), status("old", 1.0, "gone"), status("new", 9990.0, "gone")
    assert removed(*jobs, max_jobs=0) == ["old"]


def test_with_an_archive_only_what_it_has_whole_goes() -> None:
    jobs = status("a", 1.0), status("b", 2.0)
    assert removed(*jobs, max_jobs=0, archived=frozenset({"b"})) == ["b"]
    assert removed(*jobs, max_jobs=0, archived=frozenset()) == []


def test_an_archive_without_a_sign_for_a_day_holds_nothing_back(tmp_path: Path) -> None:
    assert archived_jobs(tmp_path) is None
    note_archive(tmp_path, ["a"])
    assert archived_jobs(tmp_path) == frozenset({"a"})
    long_ago = time.time() - 90_000
    os.utime(tmp_path / ARCHIVED, (long_ago, long_ago))
    assert archived_jobs(tmp_path) is None


def test_jobs_are_removed_with_their_archive_mark(tmp_path: Path) -> None:
    for number in range(25):
        folder = tmp_path / "jobs" / f"job-{24 - number:02}"
        for kind in ("job_started", "job_finished"):
            append_event(folder, Event(kind=kind, job_id=folder.name, attempt=0, time=number + 1.0))
    note_archive(tmp_path, ["job-24"])
    remove_ended_jobs(tmp_path)
    assert len(read_statuses(tmp_path)) == 24
    assert archived_jobs(tmp_path) == frozenset()
    remove_ended_jobs(tmp_path / "never")


class Mount:
    """An entry that a user mounted a file system on which nobody else may look at."""

    name = path = "aa-mount"

    def stat(self, **_: bool) -> os.stat_result:
        raise PermissionError(13, "Permission denied")


def test_what_nobody_may_look_at_hides_no_other_job_and_stops_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bb", "cc"):
        append_event(tmp_path / "jobs" / name, Event(kind="job_started", job_id=name, attempt=0))
    scan = os.scandir

    @contextmanager
    def scan_with_a_mount(folder: Any) -> Iterator[Iterator[Any]]:
        with scan(folder) as entries:
            yield chain([Mount()], entries)

    monkeypatch.setattr("lockstep_records.files.jobs.os.scandir", scan_with_a_mount)
    assert [job.name for job in list_jobs(tmp_path)] == ["bb", "cc"]
    assert "aa-mount/ is refused: it is left out (Permission denied)" in caplog.messages
    monkeypatch.undo()
    monkeypatch.setattr("lockstep_records.files.job_status.list_jobs", lambda _: Mount().stat())
    remove_ended_jobs(tmp_path)
    assert "retention=left" in caplog.text


@pytest.fixture
def job(memory: Path) -> Path:
    return memory / "jobs" / "job-a"


def write_rank(memory: Path, rank: int, phase: str) -> PageWriter:
    path = page_path(memory, "job-a", 0, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    page = PageWriter(path, RankIdentity(job_id="job-a", rank=rank, world_size=4), rows=4)
    page.heartbeat(time.monotonic_ns(), PHASES.index(phase))
    page.commit(time.monotonic_ns())
    return page


def test_a_job_runs_while_one_of_its_ranks_lives(memory: Path, job: Path) -> None:
    pages = [write_rank(memory, rank, "forward") for rank in range(2)]
    running = read_status(job)
    assert (running.state, running.ranks, running.world_size) == ("running", 2, 4)
    assert running.end_seconds is None
    assert running.size_bytes > 0
    for page in pages:
        page.close()


@pytest.mark.parametrize(
    ("phases", "kinds", "expected"),
    [
        (("done", "done"), (), ("ended", None)),
        (("done", "forward"), (), ("gone", None)),
        (("forward", "forward"), ("job_started", "job_finished"), ("ended", "failed")),
        (("forward",), ("job_started", "job_finished", "job_started"), ("gone", None)),
    ],
    ids=["pages", "one rank is gone", "launcher", "requeued"],
)
def test_the_end_is_told_by_the_launcher_or_by_all_pages(
    memory: Path,
    job: Path,
    phases: tuple[str, ...],
    kinds: tuple[str, ...],
    expected: tuple[str, str | None],
) -> None:
    for rank, phase in enumerate(phases):
        write_rank(memory, rank, phase).close()
    for kind in kinds:
        append_event(job, Event(kind=kind, job_id="job-a", attempt=0, fields={"outcome": "failed"}))
    ended = read_status(job)
    assert (ended.state, ended.outcome) == expected
    assert ended.end_seconds == pytest.approx(time.time(), abs=60)
