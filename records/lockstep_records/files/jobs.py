"""Paths of the pages and events of jobs: ROOT/jobs/JOB_ID/ATTEMPT/rank-00003.page."""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from heapq import heappush, heappushpop, nlargest, nsmallest
from itertools import chain, islice
from pathlib import Path

from lockstep_records.events.event import read_events
from lockstep_records.file_access.foreign_files import folder_user, scan_foreign
from lockstep_records.page.layout import PLUGIN_PAGE
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page, PageError, read_page

# A job that restarts more often has made no progress that is worth the time at start-up.
_MOST_ATTEMPTS = 64
_BIRTH_SECONDS = 2.0
_BIRTH_POLL_SECONDS = 0.01


def newest_pages(job: Path) -> list[Page]:
    """Readable pages of a job's newest attempt on this node, by rank; or OSError."""
    return [page for folder in list_attempts(job)[-1:] for page in pages_of(folder)]


def pages_of(attempt: Path) -> list[Page]:
    """Readable pages of an attempt, by rank, none without its folder; or OSError."""
    return _readable(list_pages(attempt)) if attempt.is_dir() else []


def _readable(paths: list[Path]) -> list[Page]:
    pages = []
    for path in paths:
        with suppress(PageError):  # a torn page of one rank must not hide the others
            pages.append(read_page(path))
    return pages


def count_attempts(job: Path) -> int:
    """Attempts of a job as far as this node knows, by pages and events; or OSError."""
    numbers = [event.attempt for event in read_events(job)]
    if job.is_dir():
        numbers += [int(folder.name) for folder in list_attempts(job)]
    return max(numbers, default=-1) + 1


def attempt_to_join(job: Path, page_name: str, launch_key: int) -> int:
    """Attempt of a rank that no launcher of ours has started, by this node's pages; or OSError.

    It is the newest one while that is the same launch (``launch_key`` of the page) or runs, and a
    new one once that has ended. So the ranks of one launch share an attempt whichever comes first,
    and a job that is started again counts on.
    """
    if not job.is_dir():
        return 0
    folders = list_attempts(job)
    if not folders:
        return 0
    newest = int(folders[-1].name)
    pages = _born_pages(folders[-1])
    if any(page.identity["launch_key"] == launch_key for page in pages):
        return newest
    running = [page for page in pages if find_process(page) is not None]
    # Ranks in pods of their own have no launcher in common; those of one attempt run together.
    has_own = (folders[-1] / page_name).exists()
    if running and (not has_own or any(page.path.name == page_name for page in running)):
        return newest
    return newest + 1


def _born_pages(folder: Path) -> list[Page]:
    """Readable pages of an attempt; waits a moment for those that ranks are creating right now.

    A rank of the same launch that has made the folder, and not yet written its identity, would
    look like an attempt that is over: the ranks of one launch would part.
    """
    deadline = time.monotonic() + _BIRTH_SECONDS
    while True:
        paths = list_pages(folder)
        pages = _readable(paths)
        if (paths and len(pages) == len(paths)) or time.monotonic() > deadline:
            return pages
        time.sleep(_BIRTH_POLL_SECONDS)


def highest_step_before(path: Path) -> int | None:
    """Highest step that an earlier attempt completed here, by any rank's page; None without."""
    attempt = int(path.parent.name) if path.parent.name.isdecimal() else 0
    try:
        earlier = [
            folder for folder in list_attempts(path.parents[1]) if int(folder.name) < attempt
        ]
        steps = [_completed_step(folder, path.name) for folder in earlier[-_MOST_ATTEMPTS:]]
    except OSError:
        return None
    return max((step for step in steps if step is not None), default=None)


def _completed_step(attempt: Path, page_name: str) -> int | None:
    """Step of the page of that name, or of the first other page that has one."""
    for path in sorted(list_pages(attempt), key=lambda page: page.name != page_name):
        try:
            step = read_page(path).state["step"]
        except PageError:
            continue
        if step is not None:
            return int(step)
    return None


# Folder names and label values at once: no slash, no leading dot, no control character. Slurm
# writes 4242+1 for a component of a heterogeneous job.
_MAX_CHARACTERS = 100
JOB_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_MAX_CHARACTERS - 1}}}")
PAGE = re.compile(r"rank-[0-9]{5,}(\.nccl)?\.page")
_ATTEMPT = re.compile(r"[0-9]{1,9}")
_MAX_NAMED_JOBS = 5
MAX_ENTRIES = 1 << 20
"""Entries of a folder that are looked at; the names of a million empty files take time, no memory.
"""
MAX_JOBS_PER_USER = 1024
Roots = Path | tuple[Path, ...]
"""One folder of jobs or several; one with a star is the folders of many pods."""
MAX_ATTEMPTS = 4096
MAX_PAGES = 1 << 16
"""Pages of an attempt, of all ranks of a large cluster in an archive; a node has far fewer."""
_FILES_PER_RANK = 16
# First the folder that a tmpfiles entry creates: logind removes what a user has in /dev/shm when
# the last session ends (RemoveIPC), and Slurm's job_container/tmpfs gives each job one of its own.
CANDIDATE_ROOTS = (Path("/run/lockstep"), Path("/dev/shm/lockstep"))  # noqa: S108  # the agreed folders; pages are created there exclusively


def find_root(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of all jobs on this node: LOCKSTEP_DIR, or the first default that exists."""
    if folder := environment.get("LOCKSTEP_DIR"):
        return Path(folder)
    return next((root for root in CANDIDATE_ROOTS if root.is_dir()), CANDIDATE_ROOTS[-1])


def check_job_id(job_id: str) -> str:
    """The job id itself; ValueError where it could not be a folder name or a label."""
    if not JOB_ID.fullmatch(job_id):
        raise ValueError(
            f"job id {job_id!r} must be 1 to 100 letters, digits, dots, dashes, underscores or"
            " plus signs and begin with a letter or digit"
        )
    return job_id


def fit_job_id(text: str) -> str:
    """An id out of names of others; what an id cannot hold is a dash, and a digest tells apart."""
    job_id = re.sub(r"[^A-Za-z0-9._+-]", "-", text).lstrip("._+-") or "x"
    if job_id == text and JOB_ID.fullmatch(job_id):
        return job_id
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    return f"{job_id[: _MAX_CHARACTERS - len(digest) - 1]}-{digest}"


def new_job_id() -> str:
    """A fresh id that sorts by time, such as ``20261120-184512-3fa97b21``."""
    # Thousands of pods may start in one second.
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(4)


def job_folder(root: Path, job_id: str) -> Path:
    """The folder of one job."""
    return root / "jobs" / check_job_id(job_id)


def page_path(root: Path, job_id: str, attempt: int, rank: int) -> Path:
    """The page of one rank in one attempt."""
    return page_in(job_folder(root, job_id) / str(attempt), rank)


def page_in(attempt: Path, rank: int) -> Path:
    """The page of one rank in the folder of an attempt."""
    return attempt / f"rank-{rank:05d}.page"


def create_job_folder(folder: Path) -> None:
    """Creates a job's folder for its user and the group that reads pages; or OSError.

    On a node that several users share, ``jobs`` is sticky and setgid: the group comes from there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o750)


def list_roots(roots: Roots) -> list[Path]:
    """Folders that hold ``jobs/``; of each pattern those that are there now, at most 1,024."""
    folders = plain_roots(roots)
    for root in (roots,) if isinstance(roots, Path) else roots:
        if root not in folders:
            found = Path(root.anchor).glob(str(root.relative_to(root.anchor)))
            folders += islice(found, MAX_JOBS_PER_USER)
    return folders


def plain_roots(roots: Roots) -> list[Path]:
    """Those that are one folder: of the machine, where its agent and its launchers meet."""
    return [
        each for each in ((roots,) if isinstance(roots, Path) else roots) if "*" not in str(each)
    ]


def list_jobs(roots: Roots) -> list[Path]:
    """Folders of all jobs, oldest name first; empty when there are none.

    A link is not a job. At most ``MAX_JOBS_PER_USER`` of a user count in each root, the last ones.
    """
    jobs = chain.from_iterable(_list_root(root / "jobs") for root in list_roots(roots))
    return sorted(jobs, key=lambda job: (job.name, job))


def _list_root(folder: Path) -> Iterator[Path]:
    names: dict[int, list[str]] = {}
    try:
        # In the volume of a pod this folder is the pod's own, and may lead to another's.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return iter(())
    try:
        # Agents list it each second: scandir builds a Path for jobs only.
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, MAX_ENTRIES):
                if JOB_ID.fullmatch(entry.name) and (user := folder_user(entry)) is not None:
                    _keep_last(names.setdefault(user, []), entry.name)
    finally:
        os.close(descriptor)
    return (folder / name for name in chain.from_iterable(names.values()))


def _keep_last(names: list[str], name: str) -> None:
    if len(names) < MAX_JOBS_PER_USER:
        heappush(names, name)
    else:
        heappushpop(names, name)


def list_attempts(job: Path, limit: int = MAX_ATTEMPTS) -> list[Path]:
    """Attempt folders of a job, first attempt first, the last ``limit``; or OSError."""
    # Anything else in the folder, such as events and switches, is not an attempt.
    names = scan_foreign(job, _ATTEMPT, MAX_ENTRIES, folders=True)
    return [job / name for name in reversed(nlargest(limit, names, key=int))]


def list_pages(attempt: Path, limit: int = MAX_PAGES) -> list[Path]:
    """Page files of an attempt by rank, the first ``limit``; or OSError."""
    names = scan_foreign(attempt, PAGE, min(MAX_ENTRIES, _FILES_PER_RANK * limit))
    return [attempt / name for name in speaking_pages(nsmallest(2 * limit, names))[:limit]]


def speaking_pages(names: Iterable[str]) -> list[str]:
    """Names of pages without those of NCCL's plugin where ``attach`` speaks for the rank itself."""
    ordered = sorted(names)
    spoken_for = {f"{name.removesuffix('.page')}{PLUGIN_PAGE}" for name in ordered}
    return [name for name in ordered if name not in spoken_for]


def start_seconds(job: Path) -> float:
    """Wall clock at which a job began, in seconds since 1970.

    The first event tells it; without events the oldest attempt's folder does, which changes only
    while its pages are created.
    """
    events = read_events(job)
    if events:
        return events[0].time
    folders = list_attempts(job)
    return (folders[0] if folders else job).lstat().st_mtime


def newest_jobs(root: Path, count: int) -> list[Path]:
    """Folders of the jobs that began last, newest first."""
    by_start = []
    for job in list_jobs(root):
        try:
            by_start.append((start_seconds(job), job))
        except OSError:  # it is being removed
            continue
    return [job for _, job in sorted(by_start, reverse=True)[:count]]


def newest_job(root: Path | None = None) -> Path:
    """The folder of the job that began last on this node; ValueError where there is none."""
    root = root or find_root()
    for job in newest_jobs(root, 1):
        return job
    raise ValueError(f"no job exists under {root}/jobs; name one, or set LOCKSTEP_DIR")


def find_job(id_or_path: str, root: Path | None = None) -> Path:
    """The folder of a job given by id or by path; a ValueError names the newest ones."""
    root = root or find_root()
    if os.sep in id_or_path or id_or_path in {".", ".."}:
        # A link that the user names is the user's own; in a job's folder none is followed.
        folder = Path(os.path.realpath(id_or_path))  # unlike Path.resolve, takes a circle of links
        if folder.is_dir() and list_attempts(folder):
            return folder
        raise ValueError(
            f"{id_or_path} is not a job folder; it should hold attempts 0, 1, ... with rank pages,"
            " or the nodes of an archive"
        )
    folder = job_folder(root, id_or_path)
    if folder.is_dir() and not folder.is_symlink():
        return folder
    newest = ", ".join(path.name for path in newest_jobs(root, _MAX_NAMED_JOBS)) or "none"
    raise ValueError(f"job {id_or_path!r} is not under {root}/jobs; newest jobs there: {newest}")
