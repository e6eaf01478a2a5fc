"""Lists the jobs of a node: where each stands, how far it came, and the verdict on it."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from lockstep_cli.options import option
from lockstep_records.files.job_status import JobStatus, read_all_statuses
from lockstep_records.files.jobs import find_root
from lockstep_records.text.printable import printable
from lockstep_reports.wording import clock, duration

_COLOURS = {"gone": "bold red", "running": "green", "starting": "yellow"}
_WIDTH_OF_FILES = 140
_MIB = 1 << 20


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.option(
    "--dir",
    "root",
    type=click.Path(path_type=Path),
    help="Folder of all jobs; LOCKSTEP_DIR or /dev/shm/lockstep by default.",
)
@option("--count", type=click.IntRange(1), default=20, help="Jobs at most, the newest first.")
@click.option(
    "--verdict/--no-verdict",
    "with_verdict",
    default=True,
    help="Judge each job as lockstep report does; without it the list is there at once.",
)
def jobs(*, as_json: bool, root: Path | None, count: int, with_verdict: bool) -> None:
    """List the jobs of this node, the newest first: state, ranks, last step, verdict."""
    root = root or find_root()
    statuses = read_all_statuses(root)[:count]
    if not statuses and not as_json:
        click.echo(f"no jobs under {root}/jobs")
        return
    headlines = list(_headlines(statuses, show_progress=not as_json)) if with_verdict else []
    if as_json:
        padded = headlines or [None] * len(statuses)
        documents = [_document(*pair) for pair in zip(statuses, padded, strict=True)]
        click.echo(json.dumps(documents, indent=2))
        return
    console = Console()
    # A pipe has no width of its own, and rich's 80 columns would fold the table.
    console = console if console.is_terminal else Console(width=_WIDTH_OF_FILES)
    console.print(_table(statuses, headlines))
    for status in statuses:
        for sentence in status.unseen:
            console.print(Text(printable(f"{status.folder.name}: {sentence}"), style="dim"))


def _headlines(statuses: Sequence[JobStatus], *, show_progress: bool) -> Iterator[str | None]:
    from lockstep_reports.readers import ReadOptions, jobs  # noqa: PLC0415  # loads numpy
    from lockstep_reports.report import make_document  # noqa: PLC0415  # likewise

    console = Console(stderr=True)
    is_hidden = not show_progress or not console.is_terminal
    for status in track(
        statuses, description="judging", console=console, disable=is_hidden, transient=True
    ):
        if status.finding is not None:
            yield f"by {status.seen_by}: {status.finding}"
            continue
        try:
            yield make_document(jobs.read(status.folder, ReadOptions())).headline
        # A job without a step, or one that is being removed, is listed all the same.
        except (ValueError, OSError):
            yield None


def _document(status: JobStatus, headline: str | None) -> dict[str, Any]:
    """Fields of the JSON: those of the status, with what is unknown left out."""
    fields = asdict(status) | {"folder": str(status.folder), "headline": headline}
    return {"job_id": status.folder.name} | {
        name: value for name, value in fields.items() if value is not None
    }


def _table(statuses: Sequence[JobStatus], headlines: Sequence[str | None]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("job", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("began, UTC", no_wrap=True)
    for name in ("took", "attempts", "ranks", "step", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    if headlines:
        table.add_column("verdict")
    for index, status in enumerate(statuses):
        verdict = [Text(printable(headlines[index] or "-"))] if headlines else []
        table.add_row(*_cells(status), *verdict)
    return table


def _cells(status: JobStatus) -> list[Text]:
    end_seconds = status.end_seconds or time.time()
    colour = "red" if status.outcome == "failed" else _COLOURS.get(status.state, "")
    world = "?" if status.world_size is None else f"{status.world_size:,}"
    is_whole = status.ranks == (status.world_size or 0)
    return [
        Text(printable(status.folder.name)),
        Text(printable(status.word), style=colour),
        Text(clock(status.start_seconds)),
        Text(duration(max(0.0, end_seconds - status.start_seconds))),
        Text(f"{status.attempts:,}"),
        Text(f"{status.ranks:,}" if is_whole else f"{status.ranks:,} of {world}"),
        Text("-" if status.last_step is None else f"{status.last_step:,}"),
        Text(f"{status.size_bytes / _MIB:,.0f}"),
    ]
