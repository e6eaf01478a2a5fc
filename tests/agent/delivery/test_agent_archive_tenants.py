"""The archive copies what a job's owner has written there himself, and holds up nobody else."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lockstep_agent.delivery import archive as copier_module
from lockstep_agent.delivery.archive import MAX_FILE_BYTES, Copier
from lockstep_records.archive import store
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.job_status import archived_jobs

from ..live_page import LivePage

TENANT = 65534
SECRET = b"of mode 0600"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


class Clock:
    """Seconds that a test moves on."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def files() -> Any:
    files = fsspec.filesystem("memory")
    yield files
    if files.exists("/tenants"):
        files.rm("/tenants", recursive=True)


def names_in(files: Any) -> list[str]:
    return [path.removeprefix("/tenants/jobs/") for path in sorted(files.find("/tenants/jobs"))]


def job_of(root: Path, job_id: str, *, user: int | None = None) -> Path:
    """A job that has ended, with one page."""
    page = LivePage(root, job_id=job_id)
    page.step(1)
    page.phase("done")
    job = page.path.parents[1]
    for kind in ("job_started", "job_finished"):
        append_event(job, Event(kind=kind, job_id=job_id, attempt=0))
    if user is not None:
        for path in (job, *job.rglob("*")):
            os.chown(path, user, -1)
    return job


@as_root
def test_an_id_in_the_archive_stays_its_first_owners(root: Path, files: Any) -> None:
    job = job_of(root, "a")
    Copier(root, files, "/tenants").copy()
    copied = {name: files.cat_file(f"/tenants/jobs/{name}") for name in names_in(files)}
    shutil.rmtree(job)
    job_of(root, "a", user=TENANT)
    later = Copier(root, files, "/tenants")
    later.copy()
    assert later.counts["copied"] == 0
    assert {name: files.cat_file(f"/tenants/jobs/{name}") for name in names_in(files)} == copied


def _place_link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def _place_second_name(path: Path, secret: Path) -> None:
    path.hardlink_to(secret)


def _place_fifo(path: Path, secret: Path) -> None:
    assert secret.exists()
    os.mkfifo(path)


def _place_terabyte(path: Path, secret: Path) -> None:
    assert secret.exists()
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("plant", [_place_link, _place_second_name, _place_fifo, _place_terabyte])
def test_the_archive_leaves_out_what_is_no_file_of_the_jobs_own(
    root: Path, files: Any, plant: Callable[[Path, Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    secret = root / "secret"
    secret.write_bytes(SECRET)
    attempt = job_of(root, "a") / "0"
    job_of(root, "b")
    plant(attempt / "rank-00000.stderr", secret)
    (attempt / "rank-00001.page").symlink_to(secret)
    clock = Clock()
    copier = Copier(root, files, "/tenants", clock)
    for _ in range(5):
        clock.seconds += 10.0
        copier.copy()
    neighbour = ["b/0/rank-00000.page", "b/events.jsonl"]
    assert names_in(files) == ["a/0/rank-00000.page", "a/events.jsonl", *neighbour]
    # What is refused once stays so: the job is in the archive without it, and may be removed.
    assert archived_jobs(root) == frozenset({"a", "b"})
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lockstep archive: a: user {os.getuid()}: {attempt}/rank-0000")
    clock.seconds += 60.0
    copier.copy()
    assert len(capsys.readouterr().err.splitlines()) == 1


@as_root
def test_the_archive_leaves_out_a_file_of_another_user(root: Path, files: Any) -> None:
    attempt = job_of(root, "a", user=TENANT) / "0"
    (attempt / "rank-00000.stderr").write_bytes(SECRET)
    (attempt / "rank-00000.error.json").write_bytes(b"{}")
    os.chown(attempt / "rank-00000.error.json", TENANT, -1)
    Copier(root, files, "/tenants").copy()
    assert names_in(files) == ["a/0/rank-00000.error.json", "a/0/rank-00000.page", "a/events.jsonl"]


def test_the_archive_follows_no_folder_that_was_replaced_by_a_link(root: Path, files: Any) -> None:
    a, b = job_of(root, "a"), job_of(root, "b")
    (a / "1").symlink_to(b / "0")
    (root / "jobs" / "c").symlink_to(b)
    copier = Copier(root, files, "/tenants")
    copier.copy()
    expected = [f"{job}/{name}" for job in "ab" for name in ("0/rank-00000.page", "events.jsonl")]
    assert names_in(files) == expected
    (a / "0").rename(root / "moved")
    (a / "0").symlink_to(b / "0")
    (b / "0" / "rank-00000.stderr").write_bytes(SECRET)
    copier.copy()
    assert names_in(files) == [*expected[:3], "b/0/rank-00000.stderr", expected[3]]


def test_a_large_file_is_streamed_to_the_archive_and_complete_there(
    root: Path, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MAX_PIPED_BYTES", 1 << 20)
    job = job_of(root, "a")
    content = os.urandom(3 << 20)
    (job / "0" / "rank-00000.stderr").write_bytes(content)
    Copier(root, files, "/tenants").copy()
    assert files.cat_file("/tenants/jobs/a/0/rank-00000.stderr") == content
    assert not [name for name in names_in(files) if name.endswith(".part")]


@as_root
def test_a_user_with_more_than_a_share_is_late_with_his_own_jobs_only(
    root: Path, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_bytes = job_of(root, "z").joinpath("0", "rank-00000.page").stat().st_size
    monkeypatch.setattr(copier_module, "MAX_ROUND_BYTES", page_bytes * 3 // 2)
    for job_id in ("a", "b"):
        job_of(root, job_id, user=TENANT)
    copier = Copier(root, files, "/tenants")
    copier.copy()
    pages = [name for name in names_in(files) if name.endswith(".page")]
    assert pages == ["a/0/rank-00000.page", "z/0/rank-00000.page"]
    assert archived_jobs(root) == frozenset({"a", "z"})
    copier.copy()
    assert archived_jobs(root) == frozenset({"a", "b", "z"})


def test_a_job_has_a_bound_of_bytes_and_of_files(
    root: Path, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(root, "a")
    for rank in range(1, 6):
        (job / "0" / f"rank-{rank:05d}.stderr").write_bytes(b"x" * 1000)
    size = sum(path.stat().st_size for path in job.rglob("*") if path.is_file())
    monkeypatch.setattr(copier_module, "MAX_JOB_BYTES", size - 1500)
    Copier(root, files, "/tenants").copy()
    assert len(names_in(files)) == 5
    monkeypatch.setattr(copier_module, "MAX_JOB_FILES", 3)
    files.rm("/tenants", recursive=True)
    Copier(root, files, "/tenants").copy()
    assert len(names_in(files)) == 3
    assert MAX_FILE_BYTES == 256 << 20
