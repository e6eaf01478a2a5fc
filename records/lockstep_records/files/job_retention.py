"""Which jobs leave a node's tmpfs: those that ended first, when there are many or they take much.

Pages lie in memory, so a node that runs many jobs would fill it without a limit.
"""

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from lockstep_records.file_access.foreign_files import ForeignFileError, scan_foreign
from lockstep_records.file_access.own_files import open_own_folder
from lockstep_records.files.job_status import JobStatus, read_statuses
from lockstep_records.files.jobs import JOB_ID, MAX_ENTRIES

MAX_ENDED_JOBS = 20
MAX_SHARE_RATIO = 0.25
"""Share of the file system that the jobs which have ended may take."""
# After a day without a sign the archive was taken away, and must not let the tmpfs fill.
_ARCHIVE_SILENT_SECONDS = 86_400.0
_GONE_SECONDS = 3600.0
_NEW_NOTE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ARCHIVED = "archived"
"""Folder under the root in which an agent names the jobs that its archive has whole."""


def to_remove(
    statuses: Iterable[JobStatus],
    *,
    max_jobs: int,
    max_bytes: int,
    archived: frozenset[str] | None,
    now_seconds: float,
) -> list[Path]:
    """Folders of the jobs to remove, the one that ended first first.

    Args:
        statuses: of all jobs; those that start or run stay.
        max_jobs: jobs that stay at most.
        max_bytes: size that they may have together.
        archived: ids of the jobs that an archive has whole; None without an archive. With
            an archive no other job is removed.
        now_seconds: wall clock.
    """
    by_end = sorted(
        (status.end_seconds, status.folder, status)
        for status in statuses
        if status.end_seconds is not None
        # Between two attempts no process of a job lives either.
        and (status.state == "ended" or status.end_seconds < now_seconds - _GONE_SECONDS)
    )
    count, size = len(by_end), sum(status.size_bytes for *_, status in by_end)
    folders = []
    for *_, status in by_end:
        if count <= max_jobs and size <= max_bytes:
            break
        if archived is not None and status.folder.name not in archived:
            continue
        folders.append(status.folder)
        count, size = count - 1, size - status.size_bytes
    return folders


def remove_ended_jobs(root: Path) -> None:
    """Removes jobs that have ended until at most 20 of them take at most a quarter of the tmpfs."""
    if not root.is_dir():
        return
    disk = os.statvfs(root)
    folders = to_remove(
        read_statuses(root),
        max_jobs=MAX_ENDED_JOBS,
        max_bytes=int(disk.f_blocks * disk.f_frsize * MAX_SHARE_RATIO),
        archived=archived_jobs(root),
        now_seconds=time.time(),
    )
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        (root / ARCHIVED / folder.name).unlink(missing_ok=True)


def archived_jobs(root: Path) -> frozenset[str] | None:
    """Ids of the jobs that an archive has whole; None where no agent archives this root."""
    folder = root / ARCHIVED
    try:
        silent_seconds = time.time() - folder.lstat().st_mtime
        names = frozenset(scan_foreign(folder, JOB_ID, MAX_ENTRIES))
    except (FileNotFoundError, ForeignFileError):
        return None
    return names if silent_seconds < _ARCHIVE_SILENT_SECONDS else None


def note_archive(root: Path, archived: Iterable[str]) -> None:
    """Tells launchers that an archive runs, and which jobs it has whole.

    Raises:
        OSError: the root cannot be written.
    """
    folder = root / ARCHIVED
    folder.mkdir(mode=0o755, exist_ok=True)
    with open_own_folder(folder) as descriptor:
        for job_id in archived:
            os.close(os.open(job_id, _NEW_NOTE, 0o644, dir_fd=descriptor))
        os.utime(".", dir_fd=descriptor)
