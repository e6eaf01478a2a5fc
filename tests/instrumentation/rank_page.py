"""The rank that a test's process is, and its page."""

from pathlib import Path

from lockstep_records.page.reader import Page, read_page

ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "4", "LOCKSTEP_JOB_ID": "job-a"}


def page_of(root: Path, attempt: int = 0) -> Page:
    return read_page(root / "jobs" / "job-a" / str(attempt) / "rank-00001.page")
