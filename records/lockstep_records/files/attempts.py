"""Attempts of a job on this node: numbers, the newest pages, what earlier ones completed."""

import time
from contextlib import suppress
from pathlib import Path

from lockstep_records.events.event import read_events
from lockstep_records.files.jobs import list_attempts, list_pages
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page, PageError, read_page

# A job that restarts more often has made no progress that is worth the time at start-up.
_MOST_ATTEMPTS = 64
_BIRTH_SECONDS = 2.0
_BIRTH_POLL_SECONDS = 0.01


def newest_pages(job: Path) -> list[Page]:
    """Readable pages of a job's newest attempt on this node, by rank.

    Raises:
        OSError: the job's folder cannot be listed.
    """
    return [page for folder in list_attempts(job)[-1:] for page in pages_of(folder)]


def pages_of(attempt: Path) -> list[Page]:
    """Readable pages in the folder of an attempt, by rank; empty without such a folder.

    Raises:
        OSError: the folder cannot be listed.
    """
    return _readable(list_pages(attempt)) if attempt.is_dir() else []


def _readable(paths: list[Path]) -> list[Page]:
    pages = []
    for path in paths:
        with suppress(PageError):  # a torn page of one rank must not hide the others
            pages.append(read_page(path))
    return pages


def count_attempts(job: Path) -> int:
    """Attempts that a job has had as far as this node knows, by pages and events.

    Raises:
        OSError: the folder cannot be read.
    """
    numbers = [event.attempt for event in read_events(job)]
    if job.is_dir():
        numbers += [int(folder.name) for folder in list_attempts(job)]
    return max(numbers, default=-1) + 1


def attempt_to_join(job: Path, page_name: str, launch_key: int) -> int:
    """Attempt of a rank that no launcher of ours has started, by the pages on this node.

    It is the newest one while that is the same launch or runs, and a new one once that has ended.
    So the ranks of one launch share an attempt whichever comes first, and a job that is started
    again counts on.

    Args:
        job: folder of the job; it need not exist.
        page_name: file name of the rank's page.
        launch_key: see the page's field.

    Raises:
        OSError: the folder cannot be read.
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
    """Highest step that an earlier attempt completed, by this rank's page or another's.

    Returns:
        None where no earlier attempt completed a step on this node.
    """
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
