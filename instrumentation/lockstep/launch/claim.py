"""Claims a job's folder for one launcher: a job id is in use only while its job runs.

A job that is started again under its id goes on counting its attempts.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lockstep.identity.requeues import requeues_of
from lockstep.launch.job import Job
from lockstep_records.file_access.foreign_files import ForeignFileError
from lockstep_records.file_access.own_files import open_own_file, open_own_folder
from lockstep_records.files.attempts import count_attempts, newest_pages
from lockstep_records.files.job_status import remove_ended_jobs
from lockstep_records.files.jobs import CANDIDATE_ROOTS, create_job_folder
from lockstep_records.page.liveness import find_process
from lockstep_records.page.lock import Holder, PageLock, holder_of

LOCK_NAME = "launcher.lock"
_APART = CANDIDATE_ROOTS[-1].parent  # a tmpfs in which every user may create folders


class ForeignFolderError(ValueError):
    """The folder of the job's id is not the user's own; the text says whose, and what helps."""


class JobInUseError(ValueError):
    """The launcher or a rank of the job's id runs; the text says which, and what helps."""


@contextmanager
def claim_job(job: Job, environment: Mapping[str, str] = os.environ) -> Iterator[int]:
    """Holds the job's folder during the block; gives the number of the job's next attempt.

    Raises:
        ForeignFolderError: the job's folder is somebody else's.
        JobInUseError: the job runs.
        ValueError: its folder cannot be created.
    """
    with _explained_refusals(job):
        _check_unused(job)
        remove_ended_jobs(job.root)
        lock = _lock_folder(job)
    try:
        yield max(count_attempts(job.folder), requeues_of(environment))
    finally:
        lock.release()


@contextmanager
def _explained_refusals(job: Job) -> Iterator[None]:
    """Turns an error of the file system into a sentence with its remedy."""
    try:
        yield
    except ForeignFileError as error:
        raise ForeignFolderError(
            f"job id {job.job_id!r} cannot be used: {error}; choose another id"
        ) from error
    except OSError as error:
        raise ValueError(
            f"folder {job.folder} cannot be created ({error.strerror}); "
            "set LOCKSTEP_DIR to a writable folder on a tmpfs"
        ) from error


def move_apart(job: Job, error: ForeignFolderError) -> Job:
    """The same job in a new folder of all jobs, which only its user can read.

    An id can be guessed and its folder created before its job starts: that must not keep the job
    from training.

    Raises:
        ForeignFolderError: the given error, where no such folder can be created.
    """
    try:
        return replace(job, root=Path(tempfile.mkdtemp(prefix=f"{job.root.name}-", dir=_APART)))
    except OSError:
        raise error from None


def _check_unused(job: Job) -> None:
    """Refuses an id whose launcher or one of whose ranks runs."""
    if not os.path.lexists(job.folder):
        return
    with open_own_folder(job.folder):
        launcher = _launcher_of(job.folder)
    if launcher is not None:
        raise JobInUseError(_describe_holder(job, "its launcher", launcher.pid))
    for page in newest_pages(job.folder):
        process = find_process(page)
        if process is not None:
            raise JobInUseError(
                _describe_holder(job, f"its rank {page.identity['rank']}", process.pid)
            )


def _launcher_of(folder: Path) -> Holder | None:
    try:
        return holder_of(folder / LOCK_NAME)
    except OSError:
        return None  # there is none, or the kernel has no such locks


def _describe_holder(job: Job, holder: str, pid: int | None) -> str:
    number = "" if pid is None else f" (process {pid})"
    return (
        f"job id {job.job_id!r} is in use under {job.root}/jobs: {holder}{number} still runs; "
        "wait for its end or choose another id"
    )


def _lock_folder(job: Job) -> PageLock:
    if not os.path.lexists(job.folder):
        create_job_folder(job.folder)
    lock = PageLock(open_own_file(job.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT))
    # Another launcher may have been quicker since the check.
    if not lock.is_held and (launcher := _launcher_of(job.folder)) is not None:
        raise JobInUseError(_describe_holder(job, "its launcher", launcher.pid))
    return lock
