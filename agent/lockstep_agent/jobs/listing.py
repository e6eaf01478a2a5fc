"""Lists the jobs of a node within bounds a user: who makes thousands of files cuts his own jobs."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from os import DirEntry, scandir
from pathlib import Path

from lockstep_agent.exposition.fair_share import fair_shares
from lockstep_records.file_access.foreign_files import owner_of
from lockstep_records.files.jobs import Roots, list_jobs, plain_roots

MAX_JOBS = 64
"""Of one user; the launcher keeps 20 that have ended. The newest stay."""
MAX_PAGES = 512
"""Of one user over all his jobs, newest attempts first: a node with 8 ranks restarts 63 times."""
MAX_FILES = 32_768
"""Entries that are listed of one user, in equal parts for his jobs."""
_ATTEMPT = re.compile(r"[0-9]{1,9}")
_PAGE = re.compile(r"rank-[0-9]{5,}\.page")
Attempts = tuple[tuple[Path, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedJob:
    """One job on this node.

    Attributes:
        folders: of the job: one, or one in the volume of each of its pods.
        owner: user id of the folders.
        attempts: paths of the pages of each attempt, oldest attempt first.
        bound: the bound that cuts the job, a value of the label ``bound``; empty where none does.
    """

    folders: tuple[Path, ...]
    owner: int
    attempts: Attempts
    bound: str = ""

    @property
    def folder(self) -> Path:
        """The first folder; its name is the job's id."""
        return self.folders[0]


def list_node(roots: Roots) -> tuple[list[ListedJob], Counter[str]]:
    """Every folder of a job, oldest name first, and how many jobs each bound cuts.

    The bounds are those of a user; of pods, whose users often have one number, those of each.

    Raises:
        OSError: a root is there and cannot be listed.
    """
    shared = plain_roots(roots)
    by_tenant: dict[tuple[Path | None, int], list[Path]] = {}
    for folder in list_jobs(roots):
        root = folder.parents[1]
        try:
            tenant = (None if root in shared else root, owner_of(folder))
            by_tenant.setdefault(tenant, []).append(folder)
        except OSError:  # it is being removed, or is a link
            continue
    jobs: list[ListedJob] = []
    num_cut: Counter[str] = Counter()
    for (_, owner), folders in by_tenant.items():
        num_cut["jobs"] += max(len(folders) - MAX_JOBS, 0)
        newest = sorted(folders, key=_changed_ns)[-MAX_JOBS:] if num_cut["jobs"] else folders
        jobs += _cut_pages([_list_job(each, owner, MAX_FILES // len(newest)) for each in newest])
    num_cut.update(job.bound for job in jobs if job.bound)
    return sorted(jobs, key=lambda job: (job.folder.name, job.folder)), num_cut


def merge_folders(jobs: list[ListedJob]) -> ListedJob:
    """One job out of its folders in the volumes of several pods."""
    by_attempt: dict[int, list[Path]] = {}
    for path in (path for job in jobs for pages in job.attempts for path in pages):
        by_attempt.setdefault(int(path.parent.name), []).append(path)
    return ListedJob(
        folders=tuple(folder for job in jobs for folder in job.folders),
        owner=jobs[0].owner,
        attempts=tuple(
            tuple(sorted(by_attempt[number], key=lambda path: path.name))
            for number in sorted(by_attempt)
        ),
        bound=next((job.bound for job in jobs if job.bound), ""),
    )


def _changed_ns(folder: Path) -> int:
    try:
        return folder.lstat().st_mtime_ns
    except OSError:
        return 0


def _list_job(folder: Path, owner: int, max_files: int) -> ListedJob:
    attempts: list[tuple[Path, ...]] = []
    try:
        entries = list(_entries(folder, max_files))
        left = max_files - len(entries)
        folders = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        numbered = filter(_ATTEMPT.fullmatch, folders)
        for name in sorted(numbered, key=int, reverse=True):
            if left <= 0:
                break
            files = [each.name for each in _entries(folder / name, left)]
            left -= len(files)
            pages = sorted(filter(_PAGE.fullmatch, files))
            attempts.append(tuple(folder / name / page for page in pages))
    except OSError:  # the folder is being removed
        return ListedJob(folders=(folder,), owner=owner, attempts=())
    bound = "" if left > 0 else "files"
    return ListedJob(folders=(folder,), owner=owner, attempts=tuple(attempts[::-1]), bound=bound)


def _entries(folder: Path, limit: int) -> Iterator[DirEntry[str]]:
    with scandir(folder) as entries:
        yield from islice(entries, limit)


def _cut_pages(jobs: list[ListedJob]) -> list[ListedJob]:
    """The jobs of one user, each with its share of the pages that he may have."""
    demands = {job.folder: sum(map(len, job.attempts)) for job in jobs}
    if sum(demands.values()) <= MAX_PAGES:
        return jobs
    shares = fair_shares(demands, MAX_PAGES)
    return [
        job
        if shares[job.folder] == demands[job.folder]
        else replace(job, attempts=_newest(job.attempts, shares[job.folder]), bound="pages")
        for job in jobs
    ]


def _newest(attempts: Attempts, num_pages: int) -> Attempts:
    """The newest attempts with so many pages, of the last of them the lowest ranks."""
    newest: list[tuple[Path, ...]] = []
    for pages in reversed(attempts):
        newest.append(pages[:num_pages])
        num_pages -= len(newest[-1])
        if not num_pages:
            break
    return tuple(newest[::-1])
