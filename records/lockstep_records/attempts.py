"""What earlier attempts of a job left behind for the one that begins now."""

from pathlib import Path

from lockstep_records.jobs import list_attempts, list_pages
from lockstep_records.page.reader import PageError, read_page

_LOOKED_AT = 64  # a job that restarts more often has made no progress worth the time to look


def highest_step_before(path: Path) -> int | None:
    """Highest step that an earlier attempt completed, as this rank's page or another's tells.

    Args:
        path: of a page in its attempt's folder.

    Returns:
        None where no earlier attempt told of a step on this node.
    """
    attempt = int(path.parent.name) if path.parent.name.isdigit() else 0
    try:
        earlier = [a for a in list_attempts(path.parents[1]) if int(a.name) < attempt]
        found = [_highest_in(one, path.name) for one in earlier[-_LOOKED_AT:]]
    except OSError:
        return None
    return max((step for step in found if step is not None), default=None)


def _highest_in(attempt: Path, name: str) -> int | None:
    """The step of the page of that name, or of the first one that tells any."""
    pages = list_pages(attempt)
    for page in sorted(pages, key=lambda path: path.name != name):
        try:
            step = read_page(page).state["step"]
        except PageError:
            continue
        if step is not None:
            return int(step)
    return None
