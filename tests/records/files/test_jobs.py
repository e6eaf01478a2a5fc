"""Folders of jobs: ids that can be folders, and sentences when there is no such job."""

from pathlib import Path

import pytest

from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import (
    CANDIDATE_ROOTS,
    check_job_id,
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


@pytest.mark.parametrize("job_id", ["a", "7", "job-a_1.x", "J" * 100, "20261120-184512-3fa9"])
def test_a_plain_name_is_a_job_id(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


@pytest.mark.parametrize(
    "job_id",
    ["", ".", "..", ".hidden", "-x", "a/b", "../a", "a b", "a\n", "a\0", "ä", "J" * 101],
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
