"""A report as one self-contained HTML page: no network, no other file."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from lockstep_reports.document.model import Document, Figure, Shares, Table
from lockstep_reports.document.published import Report
from lockstep_reports.wording import printable_lines


def render(document: Document, _path: Path) -> str:
    """The page. The template escapes everything that came from records."""
    environment = Environment(
        # StrictUndefined: a variable that a template misses is an error, not an empty cell.
        loader=PackageLoader("lockstep_reports.render"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_make_safe,
    )
    figures = [
        block
        for section in document.sections
        for block in section.blocks
        if isinstance(block, Figure) and block.by_plotly
    ]
    return environment.get_template("report.html.j2").render(
        document=document,
        kind_of={Figure: "figure", Shares: "shares", Table: "table", tuple: "sentences"}.get,
        # The script has 4.8 MB, so a page without figures goes without it.
        plotly_script=_read_script() if figures else "",
    )


def _make_safe(value: Any) -> Any:
    """Text without characters that reorder or hide others; what is safe HTML stays as it is."""
    return printable_lines(value) if type(value) is str else value


def _read_script() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  # pages without figures need no plotly

    return str(get_plotlyjs())


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
