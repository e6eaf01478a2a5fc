"""The folder of a job that belongs to somebody else, before launchers and before ranks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from servers import captured

import lockstep
from lockstep.launch.job import Job
from lockstep.launch.run import LOCK_NAME, ForeignFolderError, claim_job

from ..rank_page import ENVIRONMENT

STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


def run_job(root: Path) -> subprocess.CompletedProcess[str]:
    command = ["run", "--job-id", "job-a", "--nproc-per-node", "1", "-m", "this"]
    return captured(
        [Path(sys.executable).with_name("lockstep"), *command],
        env={**os.environ, "LOCKSTEP_DIR": str(root)},
        timeout=50,
    )


@pytest.mark.distributed
@as_root
def test_a_job_whose_folder_another_user_owns_trains_and_is_recorded_apart(root: Path) -> None:
    job = root / "jobs" / "job-a"
    job.mkdir(parents=True)
    os.chown(job, STRANGER, -1)
    for mode in (0o700, 0o750, 0o777):
        job.chmod(mode)
        with pytest.raises(ForeignFolderError, match=f"it belongs to user {STRANGER}"):
            claim_job(Job(program=("-m", "this"), root=root, job_id="job-a"), {}).__enter__()
    done = run_job(root)
    assert done.returncode == 0
    assert f"{job} is refused: it belongs to user {STRANGER}" in done.stderr.replace("\n", " ")
    [apart] = map(Path, re.findall(r"recorded in (\S+),", done.stderr))
    assert apart.stat().st_mode & 0o777 == 0o700
    assert [*(apart / "jobs" / "job-a" / "0").glob("rank-*")] != []
    assert [*job.iterdir()] == []
    shutil.rmtree(apart)


def test_a_launcher_refuses_a_folder_that_others_may_write_to_and_a_link(root: Path) -> None:
    job = Job(program=("-m", "this"), root=root, job_id="job-a")
    job.folder.mkdir(parents=True)
    job.folder.chmod(0o770)
    with pytest.raises(ValueError, match=r"'job-a' .*others may write to it \(mode 770\)"):
        claim_job(job, {}).__enter__()
    job.folder.rename(root / "elsewhere")
    job.folder.symlink_to(root / "elsewhere")
    with pytest.raises(ValueError, match="no link is followed; choose another id"):
        claim_job(job, {}).__enter__()
    assert [*(root / "elsewhere").iterdir()] == []


def test_a_lock_that_is_a_link_or_a_fifo_is_refused(root: Path) -> None:
    job = Job(program=("-m", "this"), root=root, job_id="job-a")
    job.folder.mkdir(parents=True, mode=0o750)
    (job.folder / LOCK_NAME).symlink_to("nowhere")
    with pytest.raises(ValueError, match="it is a link"):
        claim_job(job, {}).__enter__()
    (job.folder / LOCK_NAME).unlink()
    os.mkfifo(job.folder / LOCK_NAME)
    with pytest.raises(ValueError, match="no regular file"):
        claim_job(job, {}).__enter__()


@as_root
@pytest.mark.parametrize("level", ["job-a", "job-a/0"])
def test_a_rank_whose_folder_belongs_to_another_user_trains_without_its_monitor(
    root: Path, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    folder = root / "jobs" / level
    folder.mkdir(parents=True, mode=0o750)
    os.chown(folder, STRANGER, -1)
    monitor = lockstep.attach(root=root, environment=ENVIRONMENT, rows=64)
    assert not monitor.enabled
    message = caplog.records[-1].getMessage()
    assert message.startswith("the monitor is off, training goes on: page ")
    assert f"it belongs to user {STRANGER}, and this is user 0" in message
    assert [path for path in folder.rglob("*") if path.is_file()] == []
