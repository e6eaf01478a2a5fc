"""Thins old jobs of an archive: episodes stay whole, other steps become quantiles by minute."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from lockstep_cli.options import DurationRange, bad_input
from lockstep_records.text.printable import printable

if TYPE_CHECKING:
    from lockstep_records.archive.reader import JobArchive
    from lockstep_reports.thinning.job import Thinning

_WIDTH_OF_FILES = 140
_COLUMNS = ("steps", "whole", "episodes", "bytes before", "after")


@click.command()
@click.argument("url", metavar="URL")
@click.option(
    "--older-than",
    "age_seconds",
    type=DurationRange(),
    required=True,
    help="Age from which on a job is thinned, since its last sign of life, such as 30d.",
)
@click.option(
    "--dry-run", "is_dry", is_flag=True, help="Say what would be done, and write nothing."
)
def thin(*, url: str, age_seconds: float, is_dry: bool) -> None:
    """Thin the old jobs of an archive, the URL that lockstep agent --archive has.

    Of a job that has ended stay totals, episodes, standstills and single slow steps as they are;
    other steps become sums and quantiles (50 %, 95 %, longest) by minute, and their operations go.
    Exits with 1 where a job cannot be read as a whole, which then stays as it is.
    """
    os.umask(os.umask(0o077) | 0o027)  # as the agent's: nobody else reads all users' steps
    console = Console()
    # A pipe has no width of its own, and rich's 80 columns would fold the table.
    console = console if console.is_terminal else Console(width=_WIDTH_OF_FILES)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("job", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    reasons, num_failed = Counter[str](), 0
    with bad_input(OSError):
        archives = _list_jobs(url)
    for archive, result in _thin_all(archives, age_seconds, is_dry=is_dry):
        if isinstance(result, ValueError):
            num_failed += 1
            text = printable(f"{archive.job_id} stays as it is: {result}")
            click.echo(text, err=True)
        elif result.reason:
            reasons[result.reason] += 1
        else:
            table.add_row(Text(printable(archive.job_id)), *(f"{n:,}" for n in result[1:]))
    if table.row_count:
        console.print(table)
    for reason, count in reasons.items():
        click.echo(printable(f"left as it is: {count:,} that {reason}"))
    sys.exit(1 if num_failed else 0)


def _list_jobs(url: str) -> "list[JobArchive]":
    import fsspec  # noqa: PLC0415  # the help needs neither it nor pyarrow

    from lockstep_records.archive.reader import JobArchive  # noqa: PLC0415  # likewise
    from lockstep_records.files.jobs import JOB_ID  # noqa: PLC0415  # likewise

    try:
        files, folder = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise ValueError(f"{url} cannot be opened: {error}") from error
    jobs = f"{folder.rstrip('/')}/jobs"
    names = sorted(filter(JOB_ID.fullmatch, JobArchive(files, jobs).list_names("")))
    if not names:
        raise ValueError(f"{url} has no jobs; give the URL of lockstep agent --archive")
    return [JobArchive(files, f"{jobs}/{name}") for name in names]


def _thin_all(
    archives: "list[JobArchive]", age_seconds: float, *, is_dry: bool
) -> "Iterator[tuple[JobArchive, Thinning | ValueError]]":
    from lockstep_reports.thinning.job import thin_job  # noqa: PLC0415  # loads numpy and pyarrow

    console, now = Console(stderr=True), time.time()
    for archive in track(
        archives,
        description="thinning",
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ):
        try:
            yield archive, thin_job(archive, now - age_seconds, now, is_dry=is_dry)
        except ValueError as error:
            yield archive, error
