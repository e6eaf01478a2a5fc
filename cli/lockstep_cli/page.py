"""Print what a rank wrote to its page, even after its SIGKILL, or a line for each rank of a job."""

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_cli.options import bad_input
from lockstep_records.files.job_status import read_status
from lockstep_records.files.jobs import find_job, list_attempts, list_pages
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page, PageError, Values, read_page, read_rows
from lockstep_records.text.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

_MOST_ROWS = 5
_HIDDEN_FIELDS = frozenset({"magic", "checksum", "present", "sequence", "step_buckets"})
_COLOURS = {"running": "green", "gone": "bold red", "failed": "bold red"}
_FILE_WIDTH = 120


@click.command()
@click.argument("record", metavar="PAGE|JOB")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def page(*, record: str, as_json: bool) -> None:
    """Print a rank page, or one line a rank of a job by its id or folder.

    Exits with 2 and one sentence when it cannot be read.
    """
    path = Path(record)
    if path.is_file() or (os.sep in record and not path.is_dir()):
        _print_page(path, as_json=as_json)
    else:
        _print_job(record, as_json=as_json)


def _print_page(path: Path, *, as_json: bool) -> None:
    """Writes identity, state, totals and last five steps of a page to stdout; or UsageError."""
    with bad_input():
        read = read_page(path)
        rows = read_rows(read)
    if as_json:
        content = {
            "identity": read.identity,
            "phase": read.phase,
            "progress_ns": read.progress_ns,
            "state": read.state,
            "periodic": read.periodic,
            "rows": rows,
        }
        click.echo(json.dumps(_replace_nan(content), default=str, allow_nan=False))
        return
    click.echo("\n".join(map(printable, _lines(read))))
    click.echo(f"rows: {len(rows)} valid, the last {min(_MOST_ROWS, len(rows))} in milliseconds")
    for row in rows[-_MOST_ROWS:]:
        click.echo(_row_line(row))


def _lines(page: Page) -> list[str]:
    identity = {name: value for name, value in page.identity.items() if name not in _HIDDEN_FIELDS}
    lines = [f"{page.path}", "identity"]
    lines += [f"  {name:<22} {value}" for name, value in identity.items()]
    lines += ["now", f"  {'phase':<22} {page.phase}"]
    lines.append(f"  {'last progress':<22} {page.progress_wall_seconds:.3f} s since the epoch")
    for part in (page.state, page.periodic):
        values = {name: value for name, value in part.items() if name not in _HIDDEN_FIELDS}
        lines += [f"  {name:<22} {_format_value(value)}" for name, value in values.items()]
    return lines


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{item} {count:g}" for item, count in value.items() if count) or "none"
    return "unknown" if value is None else str(value)


def _row_line(row: Values) -> str:
    phases = " ".join(
        f"{name} {value * 1e3:.2f}" for name, value in row["phase_seconds"].items() if value
    )
    return f"  step {row['step']}: {row['seconds'] * 1e3:.2f} ms = {phases}"


def _replace_nan(value: Any) -> Any:
    """The value with NaN and infinities as text, which strict readers of JSON refuse as numbers."""
    if isinstance(value, dict):
        return {name: _replace_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_replace_nan(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _print_job(name: str, *, as_json: bool) -> None:
    """Writes a line a rank of the newest attempt: process, phase, step, progress; or UsageError."""
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
    from rich.console import Console  # noqa: PLC0415  # a page and JSON need no table
    from rich.text import Text  # noqa: PLC0415  # the same

    console = Console()
    # A pipe has no width of its own, and rich's 80 columns would fold the table.
    console = console if console.is_terminal else Console(width=_FILE_WIDTH)
    attempts = f"{status.attempts} attempt" + "s" * (status.attempts != 1)
    end = status.outcome or status.state
    console.print(Text(printable(f"job {folder.name}: {end}, {attempts}")))
    console.print(_table([rank for rank in ranks if "error" not in rank]))
    for rank in ranks:
        if "error" in rank:
            console.print(Text(printable(rank["error"]), style="bold red"))


def _rank(path: Path) -> dict[str, Any]:
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
        "loss": _replace_nan(page.state["loss"]),
        "progress_age_seconds": max(0.0, time.time() - page.progress_wall_seconds),
        "page": str(path),
    }
    return {name: value for name, value in values.items() if value is not None}


def _process(page: Page) -> str:
    process = find_process(page)
    if process is not None:
        return "running" if process.pid is None else f"running, pid {process.pid}"
    return page.phase if page.phase in ENDED_PHASES else "gone"


def _table(ranks: list[dict[str, Any]]) -> "Table":
    from rich.table import Table  # noqa: PLC0415  # the same
    from rich.text import Text  # noqa: PLC0415  # the same

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
