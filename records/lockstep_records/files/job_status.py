"""The status of a job of this node, and who leaves its tmpfs first, and jobs without pages."""

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.events.event import Event, finish_time, read_events
from lockstep_records.file_access.foreign_files import ForeignFileError, scan_foreign
from lockstep_records.file_access.own_files import open_own_folder, replace_own_file
from lockstep_records.files.jobs import (
    JOB_ID,
    MAX_ENTRIES,
    list_attempts,
    list_jobs,
    newest_pages,
    start_seconds,
)
from lockstep_records.files.rank_files import read_object
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page
from lockstep_records.page.replicas import unseen_in

_PATH = Path("seen") / "jobs.json"
_MAX_BYTES, _MAX_JOBS, _MAX_WORDS = 1 << 20, 1024, 2000
_STALE_SECONDS = 300.0
"""After which an agent that wrote nothing new is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenJob:
    """A job of this node, what shows it, since when, and a sentence on whether it moves."""

    job_id: str
    seen_by: str
    ranks: int
    world_size: int | None
    start_seconds: float
    finding: str


def write_seen(root: Path, jobs: Sequence[SeenJob]) -> None:
    """Replaces the list, readable for root and the group of the folder; or OSError."""
    path = root / _PATH
    path.parent.mkdir(mode=0o755, exist_ok=True)
    document = {"seconds": time.time(), "jobs": [asdict(job) for job in jobs[:_MAX_JOBS]]}
    replace_own_file(path, json.dumps(document))


def read_seen(root: Path) -> list[SeenJob]:
    """The jobs of an agent that runs; empty where there is none, or it may not be read."""
    document = read_object(root / _PATH, _MAX_BYTES) or {}
    seconds, jobs = document.get("seconds"), document.get("jobs")
    is_fresh = isinstance(seconds, int | float) and time.time() - seconds < _STALE_SECONDS
    found = map(_job, jobs if is_fresh and isinstance(jobs, list) else ())
    return [job for job in found if job is not None][:_MAX_JOBS]


def _job(fields: Any) -> SeenJob | None:
    try:
        world_size = fields["world_size"]
        job = SeenJob(
            job_id=str(fields["job_id"]),
            seen_by=str(fields["seen_by"])[:_MAX_WORDS],
            ranks=int(fields["ranks"]),
            world_size=None if world_size is None else int(world_size),
            start_seconds=float(fields["start_seconds"]),
            finding=str(fields["finding"])[:_MAX_WORDS],
        )
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return job if JOB_ID.fullmatch(job.job_id) else None


_log = logging.getLogger(__name__)
JobState = Literal["starting", "running", "ended", "gone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """One job, as its folder on this node shows it; None where unknown.

    Attributes:
        state: ``ended`` by its launcher's word or because all of its pages say so; ``gone`` when no
            process of it lives and none of that is known.
        outcome: that the launcher found; None without a launcher, and while it runs.
        start_seconds: wall clock of the first attempt.
        end_seconds: wall clock of the end, or of the last progress of a job that is gone.
        ranks: pages of the newest attempt on this node.
        world_size: ranks of the job on all nodes.
        last_step: highest step that a rank completed.
        unseen: what its lowest rank here does not see of the loop, with the line to add.
        seen_by: by what it is seen where it has no pages; None where it has.
        finding: a sentence on whether it moves, of a job without pages.
    """

    folder: Path
    state: JobState
    outcome: str | None
    start_seconds: float
    end_seconds: float | None
    attempts: int
    ranks: int
    world_size: int | None
    last_step: int | None
    size_bytes: int
    unseen: tuple[str, ...] = ()
    seen_by: str | None = None
    finding: str | None = None

    @property
    def word(self) -> str:
        """The state in a word or two, the same wherever a job is shown: its outcome says more."""
        return self.outcome or ("ended normally" if self.state == "ended" else self.state)


def read_status(folder: Path) -> JobStatus:
    """The status of the job in a folder; OSError where it cannot be read, or is being removed."""
    events, pages = read_events(folder), newest_pages(folder)
    attempts = list_attempts(folder)
    state = _state(events, pages)
    steps = [page.state["step"] for page in pages if page.state["step"] is not None]
    # Without a launcher the first event, or the last file in the folder, comes long after the page.
    births = [page.wall_seconds(page.identity["start_monotonic_ns"]) for page in pages]
    return JobStatus(
        folder=folder,
        state=state,
        outcome=_outcome(events, pages) if state == "ended" else None,
        start_seconds=min(start_seconds(folder), *births, math.inf),
        end_seconds=_end_seconds(state, events, pages),
        attempts=len(attempts),
        ranks=len(pages),
        world_size=pages[0].identity["world_size"] if pages else None,
        last_step=max(steps, default=None),
        size_bytes=_size_bytes(folder),
        unseen=tuple(map(str, unseen_in(pages[0].periodic))) if pages else (),
    )


def read_all_statuses(root: Path) -> list[JobStatus]:
    """As ``read_statuses``, with the jobs without pages that an agent of this node sees."""
    statuses = read_statuses(root)
    with_pages = {status.folder.name for status in statuses}
    statuses += (
        JobStatus(
            folder=root / "jobs" / job.job_id,
            state="running",
            outcome=None,
            start_seconds=job.start_seconds,
            end_seconds=None,
            attempts=1,
            ranks=job.ranks,
            world_size=job.world_size,
            last_step=None,
            size_bytes=0,
            seen_by=job.seen_by,
            finding=job.finding,
        )
        for job in read_seen(root)
        if job.job_id not in with_pages
    )
    return sorted(statuses, key=lambda status: status.start_seconds, reverse=True)


def read_statuses(root: Path) -> list[JobStatus]:
    """The status of every job under a root, the one that began last first."""
    statuses = []
    for folder in list_jobs(root):
        try:
            statuses.append(read_status(folder))
        except OSError:  # it is being removed
            continue
    return sorted(statuses, key=lambda status: status.start_seconds, reverse=True)


def _state(events: list[Event], pages: list[Page]) -> JobState:
    if any(find_process(page) is not None for page in pages):
        # A rank that outlives its launcher still computes, whatever the launcher wrote.
        return "running"
    phases = {page.phase for page in pages}
    # Without a launcher the first exception is the end of the job: the others are gone with it.
    has_ended = "failed" in phases or (bool(phases) and phases <= ENDED_PHASES)
    if has_ended or finish_time(events) is not None:
        return "ended"
    return "gone" if pages else "starting"


def _outcome(events: list[Event], pages: list[Page]) -> str | None:
    finishes = [event for event in events if event.kind == "job_finished"]
    if finishes:
        return str(finishes[-1].fields.get("outcome"))
    return "failed" if any(page.phase == "failed" for page in pages) else None


def _end_seconds(state: JobState, events: list[Event], pages: list[Page]) -> float | None:
    if state in {"starting", "running"}:
        return None
    last_progress = max((page.progress_wall_seconds for page in pages), default=None)
    return finish_time(events) or last_progress


def _size_bytes(folder: Path) -> int:
    """Size of all files below a folder, of as many as are looked at; no link is followed."""
    waiting, size, entries_left = [folder], 0, MAX_ENTRIES
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in islice(entries, entries_left):
                entries_left -= 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(folder / entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return size


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
    """Removes jobs that have ended until at most 20 of them take at most a quarter of the tmpfs.

    What others have there stops no job that starts: an error is logged.
    """
    try:
        _remove_ended(root)
    except OSError as error:
        _log.warning("retention=left root=%s reason=%r", root, str(error))


def _remove_ended(root: Path) -> None:
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
        with suppress(OSError):
            (root / ARCHIVED / folder.name).unlink()


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
    """Tells launchers that an archive runs, and which jobs it has whole; or OSError."""
    folder = root / ARCHIVED
    folder.mkdir(mode=0o755, exist_ok=True)
    with open_own_folder(folder) as descriptor:
        for job_id in archived:
            os.close(os.open(job_id, _NEW_NOTE, 0o644, dir_fd=descriptor))
        os.utime(".", dir_fd=descriptor)
