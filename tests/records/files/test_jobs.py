"""Folders of jobs: ids that can be folders, and sentences when there is no such job."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_records.events.event import Event, append_event
from lockstep_records.files import roots
from lockstep_records.files.jobs import (
    CANDIDATE_ROOTS,
    attempt_to_join,
    check_job_id,
    count_attempts,
    find_job,
    find_root,
    job_folder,
    list_attempts,
    list_jobs,
    list_pages,
    new_job_id,
    newest_job,
    page_path,
)
from lockstep_records.files.last_output import (
    MAX_OUTPUT_BYTES,
    OutputRing,
    RankError,
    read_error,
    read_output,
    read_torchrun_error,
    write_error,
)
from lockstep_records.files.roots import harm_of
from lockstep_records.page.writer import PageWriter, RankIdentity


@pytest.mark.parametrize(
    "job_id", ["", ".", "..", ".hidden", "-x", "a/b", "../a", "a b", "a\n", "a\0", "ä", "J" * 101]
)
def test_what_cannot_be_a_folder_or_a_label_is_no_job_id(job_id: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 100 letters") as caught:
        check_job_id(job_id)
    assert repr(job_id) in str(caught.value)


@pytest.mark.parametrize("job_id", ["../../etc", "a/../b", "/etc"])
def test_no_job_id_leads_out_of_the_root(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(ValueError, match="job id"):
        job_folder(tmp_path, job_id)
    with pytest.raises(ValueError, match="job id"):
        page_path(tmp_path, job_id, 0, 0)


def test_new_ids_are_job_ids_and_differ() -> None:
    ids = {check_job_id(new_job_id()) for _ in range(20)}
    assert len(ids) > 1


def test_a_page_lies_under_job_and_attempt_with_its_rank_in_five_digits(tmp_path: Path) -> None:
    assert page_path(tmp_path, "a", 2, 3) == tmp_path / "jobs" / "a" / "2" / "rank-00003.page"
    assert page_path(tmp_path, "a", 0, 123456).name == "rank-123456.page"


def test_jobs_attempts_and_pages_are_listed_in_order_and_nothing_else_is(tmp_path: Path) -> None:
    attempt = tmp_path / "jobs" / "a" / "10"
    for folder in (attempt, tmp_path / "jobs" / "a" / "9", tmp_path / "jobs" / "b"):
        folder.mkdir(parents=True)
    for stray in (".x", "a b", "-q"):
        (tmp_path / "jobs" / stray).mkdir()
    for stray in ("²", "٣", "-1", "1.5", "9" * 200):
        (tmp_path / "jobs" / "a" / stray).mkdir()
    (tmp_path / "jobs" / "c").touch()
    (tmp_path / "jobs" / "a" / "8").touch()
    for name in ("rank-00001.page", "rank-00000.page", "rank-1.page", "rank-00002.page.tmp"):
        (attempt / name).touch()
    (attempt / "rank-00003.page\n").touch()
    jobs = list_jobs(tmp_path)
    assert [path.name for path in jobs] == ["a", "b"]
    assert [path.name for path in list_attempts(jobs[0])] == ["9", "10"]
    assert [path.name for path in list_pages(attempt)] == ["rank-00000.page", "rank-00001.page"]
    assert list_jobs(tmp_path / "never") == []


def test_a_job_is_found_by_its_id_and_by_its_path(tmp_path: Path) -> None:
    job = tmp_path / "jobs" / "job-a"
    (job / "0").mkdir(parents=True)
    assert find_job("job-a", tmp_path) == job
    assert find_job(str(job), tmp_path / "elsewhere") == job


def begin_job(root: Path, job_id: str, seconds: float) -> None:
    event = Event(kind="job_started", job_id=job_id, attempt=0, time=seconds)
    append_event(root / "jobs" / job_id, event)


def test_a_job_that_is_not_there_is_refused_with_the_newest_that_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'x' is not under .*/jobs; newest jobs there: none"):
        find_job("x", tmp_path)
    for number in range(7):
        begin_job(tmp_path, f"job-{number}", 1000.0 - number)
    with pytest.raises(ValueError, match=r"there: job-0, job-1, job-2, job-3, job-4$"):
        find_job("x", tmp_path)


def test_the_newest_job_is_the_one_that_began_last_whatever_its_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no job exists under"):
        newest_job(tmp_path)
    begin_job(tmp_path, "zz-first", 1.0)
    begin_job(tmp_path, "aa-last", 2.0)
    assert newest_job(tmp_path).name == "aa-last"
    # A job without events, such as under plain torchrun, began when its first attempt did.
    (tmp_path / "jobs" / "mm-plain" / "0").mkdir(parents=True)
    assert newest_job(tmp_path).name == "mm-plain"


def test_a_folder_without_attempts_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="should hold attempts 0, 1"):
        find_job(str(tmp_path), tmp_path)
    with pytest.raises(ValueError, match="is not a job folder"):
        find_job("..", tmp_path)


def test_the_root_is_what_the_environment_says_or_an_agreed_place(tmp_path: Path) -> None:
    assert find_root({"LOCKSTEP_DIR": str(tmp_path)}) == tmp_path
    assert find_root({}) in CANDIDATE_ROOTS


FIRST, SECOND = 11, 12  # keys of two launches


class Pages:
    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, job_folder(root, "job-a")
        self.writers: list[PageWriter] = []

    def attach(self, rank: int, launch_key: int) -> int:
        """A rank that attaches now; returns its attempt."""
        attempt = self.joined(rank, launch_key)
        path = page_path(self.root, "job-a", attempt, rank)
        identity = RankIdentity(
            job_id="job-a", rank=rank, world_size=8, attempt=attempt, launch_key=launch_key
        )
        self.writers.append(PageWriter(path, identity, rows=4))
        return attempt

    def joined(self, rank: int, launch_key: int) -> int:
        name = page_path(self.root, "job-a", 0, rank).name
        return attempt_to_join(self.folder, name, launch_key)

    def end(self) -> None:
        while self.writers:
            self.writers.pop().close()


@pytest.fixture(name="pages")
def _pages(memory: Path) -> Iterator[Pages]:
    pages = Pages(memory)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(pages.end)
        yield pages


def test_a_job_requeued_three_times_has_attempts_0_to_3(pages: Pages) -> None:
    for attempt in range(4):
        key = 100 + attempt
        assert [pages.attach(rank, key) for rank in (1, 0, 2)] == [attempt] * 3
        pages.end()
    assert count_attempts(pages.folder) == 4


def test_ranks_of_a_launch_share_its_attempt_though_the_first_has_ended(pages: Pages) -> None:
    assert pages.attach(0, FIRST) == 0
    pages.end()
    assert pages.attach(1, FIRST) == 0


def test_ranks_in_pods_of_their_own_join_those_that_run(pages: Pages) -> None:
    assert pages.attach(0, FIRST) == 0
    assert pages.attach(1, SECOND) == 0
    pages.end()
    # A larger world after a requeue: its newest rank had no page before.
    assert pages.attach(5, FIRST + 10) == 1
    assert pages.attach(0, FIRST + 20) == 1


def test_a_rank_that_runs_already_is_not_counted_on(pages: Pages) -> None:
    assert pages.attach(0, FIRST) == 0
    # Its page is there and held: creating it again fails, and says that the id is in use.
    assert pages.joined(0, SECOND) == 0


def test_attempts_that_left_no_pages_count_by_their_events(memory: Path) -> None:
    folder = job_folder(memory, "job-a")
    assert count_attempts(folder) == 0
    append_event(folder, Event(kind="attempt_started", job_id="job-a", attempt=4))
    assert count_attempts(folder) == 5


def test_a_rank_waits_for_the_page_that_another_of_its_launch_is_creating(pages: Pages) -> None:
    path = page_path(pages.root, "job-a", 0, 0)
    path.parent.mkdir(parents=True)
    identity = RankIdentity(job_id="job-a", rank=0, world_size=8, launch_key=FIRST)
    create = threading.Timer(0.2, lambda: pages.writers.append(PageWriter(path, identity, rows=4)))
    create.start()
    assert pages.joined(1, FIRST) == 0
    create.join()


SHARED = "23 1 0:22 / /dev/shm rw - tmpfs shm rw\n"
OWN = "99 1 0:77 / /dev/shm rw - tmpfs tmpfs rw\n"
ROOT = Path("/dev/shm/lockstep")  # noqa: S108  # nothing is written there


@pytest.fixture(name="machine")
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("self", "1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mountinfo").write_text(SHARED)
    monkeypatch.setattr(roots, "_LOGIND_RUNS", tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    return tmp_path


def harm(machine: Path, root: Path = ROOT) -> str:
    return harm_of(root, machine, machine / "logind.conf")


def test_logind_removes_pages_unless_it_is_told_not_to(machine: Path) -> None:
    assert "RemoveIPC" in harm(machine)
    (machine / "logind.conf").write_text("[Login]\n#RemoveIPC=no\n")
    assert "RemoveIPC" in harm(machine)
    (machine / "logind.conf").write_text("[Login]\nRemoveIPC=no\n")
    assert harm(machine) == ""
    (machine / "logind.conf.d").mkdir()
    (machine / "logind.conf.d" / "a.conf").write_text("[Login]\nRemoveIPC=yes\n")
    assert "RemoveIPC" in harm(machine)


def test_users_of_the_system_are_left_alone(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert harm(machine) == ""


def test_a_private_folder_is_not_seen_by_the_agent(machine: Path) -> None:
    (machine / "self" / "mountinfo").write_text(SHARED + OWN)
    assert "is this job's own" in harm(machine)


def test_nothing_harms_elsewhere(machine: Path) -> None:
    assert harm(machine, Path("/run/lockstep")) == ""


def test_a_pod_without_its_volume_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert "mount an emptyDir of medium Memory named lockstep" in harm(machine)
    assert harm(machine, Path("/run/lockstep")) == ""


@pytest.fixture(name="page")
def _page(memory: Path) -> Path:
    return memory / "rank-00003.page"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("chunk", [7, 65_536, 300_000])
def test_a_ring_holds_the_last_bytes_whatever_the_write(page: Path, size: int, chunk: int) -> None:
    data = "".join(f"line {number}\n" for number in range(40_000)).encode()[:size]
    ring = OutputRing(page)
    for at in range(0, size, chunk):
        ring.write(data[at : at + chunk])
    ring.close()
    text = read_output(page)
    assert text is not None
    assert data.decode().endswith(text)
    assert len(text) > min(size, MAX_OUTPUT_BYTES) - 20
    assert page.with_suffix(".stderr").stat().st_size == MAX_OUTPUT_BYTES + 16


@pytest.mark.parametrize("content", [b"", b"LKSTERR1", b"x" * (MAX_OUTPUT_BYTES + 16)])
def test_a_file_that_is_no_ring_is_no_output(page: Path, content: bytes) -> None:
    page.with_suffix(".stderr").write_bytes(content)
    assert read_output(page) is None


def test_an_error_is_read_as_it_was_written(page: Path) -> None:
    error = RankError(
        source="except_hook", type="ValueError", message="a\nb", file="train.py", line=7,
        function="main", traceback="Traceback", time=12.5,
    )  # fmt: skip
    write_error(page, error)
    assert read_error(page) == error
    assert str(error) == "ValueError: a (train.py:7, in main)"


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1, "source": "me"}'])
def test_a_file_that_is_no_error_of_ours_is_none(page: Path, content: str) -> None:
    page.with_suffix(".error.json").write_text(content)
    assert read_error(page) is None


def test_the_error_file_of_torchrun_is_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    extra = {"py_callstack": "Traceback ...", "timestamp": "1700000000"}
    content = {"message": {"message": "RuntimeError: out of luck", "extraInfo": extra}}
    path.write_text(json.dumps(content))
    assert read_torchrun_error(path) == RankError(
        source="torchrun", type="RuntimeError", message="out of luck", traceback="Traceback ...",
        time=1700000000.0,
    )  # fmt: skip
    path.write_text(json.dumps({"message": "plain text"}))
    assert read_torchrun_error(path) == RankError(source="torchrun", type="", message="plain text")
    for content_text in ("", "{}", '{"message": 3}', '{"message": {"message": 3}}'):
        path.write_text(content_text)
        assert read_torchrun_error(path) is None
