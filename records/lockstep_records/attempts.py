"""Pages of a job's attempts on this node: those of the newest, and what earlier ones completed."""

from pathlib import Path

from lockstep_records.jobs import list_attempts, list_pages
from lockstep_records.page.reader import Page, PageError, read_page

# A job that restarts more often has made no progress that is worth the time at start-up.
_MOST_ATTEMPTS = 64


def newest_pages(job: Path) -> list[Page]:
    """Readable pages of a job's newest attempt on this node, by rank.

    Raises:
        OSError: the job's folder cannot be listed.
    """
    return [page for folder in list_attempts(job)[-1:] for page in pages_of(folder)]


def pages_of(attempt: Path) -> list[Page]:
    """Readable pages in the folder of an attempt, by rank; empty where there is no such folder.

    Raises:
        OSError: the folder cannot be listed.
    """
    pages = []
    for path in list_pages(attempt) if attempt.is_dir() else ():
        try:
            pages.append(read_page(path))
        # A torn page of one rank must not hide the others.
        except PageError:
            continue
    return pages


def highest_step_before(path: Path) -> int | None:
    """Highest step that an earlier attempt completed, by this rank's page or another's.

    Args:
        path: of a page in its attempt's folder.

    Returns:
        None where no earlier attempt completed a step on this node.
    """
    attempt = int(path.parent.name) if path.parent.name.isdigit() else 0
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
