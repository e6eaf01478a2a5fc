"""``lockstep doctor JOB``: the ranks of a job on this node, as their pages show them now."""

import json
import math
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.files.job_status import read_status
from lockstep_records.files.jobs import find_job, list_attempts, list_pages
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page, PageError, read_page
from lockstep_records.text.printable import printable

_COLOURS = {"running": "green", "gone": "bold red", "failed": "bold red"}
_WIDTH_OF_FILES = 120


def print_job(name: str, *, as_json: bool) -> None:
    """Writes one line a rank of the newest attempt: process, phase, step, time since progress.

    Raises:
        click.UsageError: the job does not exist, or none of its pages can be read.
    """
    try:
        folder = find_job(name)
        status = read_status(folder)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"{error}; give a page, a job id or the folder of a job") from error
    ranks = [_rank(path) for attempt in list_attempts(folder)[-1:] for path in list_pages(attempt)]
    if as_json:
        job = {"job_id": folder.name, "state": status.state, "attempts": status.attempts}
        click.echo(json.dumps({**job, "ranks": ranks}))
        return
    console = Console()
    # A pipe has no width of its own, and rich's 80 columns would fold the table.
    console = console if console.is_terminal else Console(width=_WIDTH_OF_FILES)
    attempts = f"{status.attempts} attempt" + "s" * (status.attempts != 1)
    end = status.outcome or status.state
    console.print(Text(printable(f"job {folder.name}: {end}, {attempts}")))
    console.print(_table([rank for rank in ranks if "error" not in rank]))
    for rank in ranks:
        if "error" in rank:
            console.print(Text(printable(rank["error"]), style="bold red"))


def _rank(path: Path) -> dict[str, Any]:
    """What the page of a rank shows; what is unknown is absent."""
    try:
        page = read_page(path)
    except PageError as error:
        return {"page": str(path), "error": str(error)}
    values = {
        "rank": page.identity["rank"],
        "node": page.identity["node"],
        "process": _process(page),
        "phase": page.phase,
        "step": page.state["step"],
        "loss": _printable_loss(page.state["loss"]),
        "progress_age_seconds": max(0.0, time.time() - page.progress_wall_seconds),
        "page": str(path),
    }
    return {name: value for name, value in values.items() if value is not None}


def _printable_loss(loss: float | None) -> float | str | None:
    # Strict readers of JSON refuse NaN as a number.
    return loss if loss is None or math.isfinite(loss) else str(loss)


def _process(page: Page) -> str:
    process = find_process(page)
    if process is not None:
        return "running" if process.pid is None else f"running, pid {process.pid}"
    return page.phase if page.phase in ENDED_PHASES else "gone"


def _table(ranks: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("rank", justify="right")
    for name in ("node", "process", "phase"):
        table.add_column(name, no_wrap=True)
    for name in ("step", "loss", "last progress"):
        table.add_column(name, justify="right")
    for rank in ranks:
        process = str(rank["process"])
        step, loss = rank.get("step"), rank.get("loss")
        table.add_row(
            str(rank["rank"]),
            Text(printable(str(rank["node"]))),
            Text(process, style=_COLOURS.get(process.partition(",")[0], "")),
            Text(printable(str(rank["phase"]))),
            "-" if step is None else f"{step:,}",
            "-" if loss is None else loss if isinstance(loss, str) else f"{loss:.4g}",
            f"{rank['progress_age_seconds']:,.0f} s ago",
        )
    return table
