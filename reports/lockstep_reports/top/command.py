"""Shows the ranks of a job live in the terminal, the one that lags most at the top."""

import signal
import time
from contextlib import closing
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import click

from lockstep_records.options import FiniteRange

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep_reports.top.snapshot import Look, Source

_WIDTH_OF_FILES = 120
_URLS = ("http://", "https://")


@click.command()
@click.argument("named", metavar="[JOB|NODE|URL]", required=False)
@click.option("--job", "job_id", metavar="ID", help="Which job of a Prometheus; all when left out.")
@click.option("--node", metavar="NAME", help="Which node of a Prometheus; all when left out.")
@click.option(
    "--every",
    "every_seconds",
    type=FiniteRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--rows", type=click.IntRange(1, 10_000), help="Ranks shown; fills the terminal.")
@click.option("--once", is_flag=True, help="Print one frame and end.")
def top(
    named: str | None,
    *,
    job_id: str | None,
    node: str | None,
    every_seconds: float,
    rows: int | None,
    once: bool,
) -> None:
    """Watch the ranks of JOB (id or folder), of a NODE, of a Prometheus' URL, or of all jobs here.

    Sorted by lag: own work a step beyond the median of the job. Ctrl-C ends it.
    """
    try:
        with closing(_source(named, job_id, node)) as source:
            _show(source, every_seconds=every_seconds, rows=rows, once=once)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error


def _show(source: "Source", *, every_seconds: float, rows: int | None, once: bool) -> None:
    from rich.console import Console  # noqa: PLC0415  # --help need not wait for it

    from lockstep_reports.top.table import View  # noqa: PLC0415  # likewise

    first = source.look()
    console = Console()
    console = console if console.is_terminal else Console(width=_WIDTH_OF_FILES)
    if once:
        console.print(View(first, rows if rows is not None else _once_rows(console)))
        return
    _watch(console, source, first, every_seconds=every_seconds, rows=rows)


def _once_rows(console: "Console") -> int | None:
    """All of a terminal; everything where there is none."""
    return None if console.is_terminal else 10_000


def _source(named: str | None, job_id: str | None, node: str | None) -> "Source":
    if named is not None and named.startswith(_URLS):
        from lockstep_reports.top.prometheus import PrometheusSource  # noqa: PLC0415  # loads httpx

        return PrometheusSource(named, job_id, node)
    if job_id is not None or node is not None:
        raise ValueError("--job and --node are for a Prometheus; give its http:// address")
    from lockstep_reports.top.pages import PagesSource  # noqa: PLC0415  # loads numpy

    return PagesSource(named)


def _watch(
    console: "Console", source: "Source", first: "Look", *, every_seconds: float, rows: int | None
) -> None:
    from rich.live import Live  # noqa: PLC0415  # only to watch

    from lockstep_reports.top.table import View  # noqa: PLC0415  # likewise

    signal.signal(signal.SIGTERM, _interrupt)
    look = first
    with Live(View(look, rows), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                began = time.monotonic()
                live.update(View(look, rows), refresh=True)
                time.sleep(max(0.05, every_seconds - (time.monotonic() - began)))
                look = _again(source, look)
        except KeyboardInterrupt:
            return


def _again(source: "Source", last: "Look") -> "Look":
    """The next look; when that fails, the last one with the reason."""
    try:
        return source.look()
    except (ValueError, OSError) as error:
        return replace(last, notes=(f"not read again: {error}",))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
