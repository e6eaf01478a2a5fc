"""A snapshot of the job's board over the window of a report, as a page of its own."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from lockstep_reports.document.published import Report

_MARGIN_SECONDS = 30.0  # what led to it, and the scrapes after it
_TIMEOUT_SECONDS = 300.0


def write_board(report: Report, prometheus: str | None, path: Path) -> None:
    """Writes what the board of the job showed from its first sign to its last.

    ``lockstep dashboards snapshot`` draws it, in a process: components meet in files.

    Raises:
        ValueError: Prometheus or the times of the report are missing, or the snapshot fails.
    """
    if prometheus is None:
        raise ValueError(
            "--board needs a Prometheus; give its address as SOURCE or by --signs-from"
        )
    begin = report.first_sign or getattr(report, "first_step", None)
    end, job_id = report.last_sign or report.last_progress, getattr(report, "job_id", None)
    if not job_id or begin is None or end is None:
        raise ValueError("--board: this recording has no job id or no times; leave --board out")
    window = ("--from", f"{begin - _MARGIN_SECONDS:.3f}", "--to", f"{end + _MARGIN_SECONDS:.3f}")
    command = [
        *(sys.executable, "-m", "lockstep_cli.main", "dashboards", "snapshot", "job"),
        *("--prometheus", prometheus, *window, "--job", job_id),
        *("--out", str(path)),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"--board: no snapshot within {_TIMEOUT_SECONDS:.0f} s") from None
    # Status 1: the page is there, and says which of its queries failed.
    if done.returncode not in {0, 1}:
        lines = done.stderr.strip().splitlines() or ["the command says nothing"]
        raise ValueError(f"--board: {lines[-1].removeprefix('lockstep: ')}")


def link_to(board: Path, page: Path) -> str:
    """The address of a snapshot in a report's page, relative to that page."""
    return quote(os.path.relpath(board, page.parent))
