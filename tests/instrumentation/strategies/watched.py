"""A watched model of a test, and what its page says."""

from pathlib import Path
from typing import Any

import lockstep
from lockstep_records.page.reader import Page, read_page, read_rows


def watched(root: Path, *attached: Any, job_id: str = "one") -> lockstep.Monitor:
    environment = {"LOCKSTEP_JOB_ID": job_id}
    return lockstep.attach(*attached, root=root, environment=environment, rows=64)


def page_in(root: Path, job_id: str = "one") -> Page:
    return read_page(root / "jobs" / job_id / "0" / "rank-00000.page")


def rows_in(root: Path) -> list[dict[str, Any]]:
    return read_rows(page_in(root))
