"""The jobs of a node, listed within bounds a user, and one job at one tick as collectors see it."""

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from os import DirEntry, scandir
from pathlib import Path

from lockstep_agent.exposition.series_budget import fair_shares
from lockstep_agent.sources.pods import Pod
from lockstep_records.file_access.foreign_files import owner_of
from lockstep_records.files.jobs import PAGE, Roots, list_jobs, plain_roots, speaking_pages
from lockstep_records.page.liveness import RankProcess, find_process
from lockstep_records.page.reader import Page, PageError, PageReader

MAX_JOBS = 64
"""Of one user; the launcher keeps 20 that have ended. The newest stay."""
MAX_PAGES = 512
"""Of one user over all his jobs, newest attempts first: a node with 8 ranks restarts 63 times."""
MAX_FILES = 32_768
"""Entries that are listed of one user, in equal parts for his jobs."""
_ATTEMPT = re.compile(r"[0-9]{1,9}")
Attempts = tuple[tuple[Path, ...], ...]
_Refusal = tuple[str, str]
"""Reason and text of a page that cannot be read."""


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
            pages = speaking_pages(filter(PAGE.fullmatch, files))
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


class JobSnapshot:
    """One job at one tick: the folder as listed at its begin, each page as first read in it.

    A page is read at its first request: a job that ended long ago may leave thousands of pages
    behind that no collector needs every second.

    Attributes:
        folder: of the job; its name is the job id. Of several pods the first one's.
        folders: of all its pods.
        pods: whose volume each folder is in.
        owner: user id of the folder; files of another user are not read.
        cluster: of the agent; that in a page is not trusted.
        attempts: paths of the pages of each attempt, oldest attempt first; one may be empty.
    """

    def __init__(
        self,
        listed: ListedJob,
        cluster: str,
        readers: dict[Path, PageReader],
        procfs: Path,
        pods: Mapping[Path, Pod] | None = None,
    ) -> None:
        self.folder, self.owner, self.attempts = listed.folder, listed.owner, listed.attempts
        self.folders, self.pods = listed.folders, pods or {}
        self.cluster, self._readers, self._procfs = cluster, readers, procfs
        self._lock = threading.Lock()
        self._results: dict[Path, Page | _Refusal] = {}
        self._processes: dict[Path, RankProcess | None] = {}

    @property
    def job_id(self) -> str:
        """Name of the job's folder; the job id inside a page is not trusted."""
        return self.folder.name

    @property
    def paths(self) -> list[Path]:
        """Paths of the pages of all attempts."""
        return [path for attempt in self.attempts for path in attempt]

    def read(self, path: Path) -> Page:
        """One page, the same object for all requests of this tick.

        Raises:
            PageError: it cannot be read.
        """
        with self._lock:
            result = self._results.get(path)
            if result is None:
                result = self._results[path] = self._read_page(path)
        if isinstance(result, tuple):
            raise PageError(*result)
        return result

    def newest_pages(self) -> list[Page]:
        """Readable pages of the newest attempt, by rank; empty when there are none."""
        return list(self._readable(self.attempts[-1] if self.attempts else ()))

    def process(self, page: Page) -> RankProcess | None:
        """The process that wrote a page, asked of the kernel once in this tick; None once ended.

        A page may name any process: one of another user is not looked at.
        """
        if page.path not in self._processes:
            self._processes[page.path] = self._own_process(page)
        return self._processes[page.path]

    def is_running(self, page: Page) -> bool:
        """Whether the process that wrote a page still runs."""
        return self.process(page) is not None

    def _readable(self, paths: tuple[Path, ...]) -> Iterator[Page]:
        for path in paths:
            try:
                yield self.read(path)
            except PageError:
                continue  # counted by the collector `ranks`, which asks for every page

    def _own_process(self, page: Page) -> RankProcess | None:
        process = find_process(page, self._procfs)
        if process is None or process.pid is None:
            return process
        if user_of(self._procfs, process.pid) == self.owner:
            return process
        # That the lock is held is the kernel's word; a number alone is the page's.
        return RankProcess(None) if page.identity["locked"] else None

    def _read_page(self, path: Path) -> Page | _Refusal:
        # Only what was a page once has a reader: thousands of other files cost no memory.
        reader = self._readers.pop(path, None) or PageReader(path, self.owner)
        try:
            page = reader.read()
        except PageError as error:
            return error.reason, str(error)
        self._readers[path] = reader
        return page


def user_of(procfs: Path, pid: int) -> int | None:
    """User id of a process; None where it has ended or is not visible."""
    try:
        return os.stat(f"{procfs}/{pid}").st_uid  # noqa: PTH116  # for each rank in each tick
    except OSError:
        return None
