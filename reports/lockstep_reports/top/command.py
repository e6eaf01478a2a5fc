"""Shows the ranks of a job live in the terminal, the one with the largest lag at the top."""

import signal
import time
from contextlib import closing, suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import click

from lockstep_cli.options import DurationRange, option
from lockstep_records.files.jobs import newest_job
from lockstep_records.text.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep_reports.top.cluster import ClusterSnapshot
    from lockstep_reports.top.table import Snapshot

# A pipe has no width of its own, and rich's 80 columns would fold the table.
_WIDTH_OF_FILES = 120
_ALL_ROWS = 10_000
_URLS = ("http://", "https://")


class SnapshotSource(Protocol):
    """Gives one snapshot after another."""

    def poll(self) -> "Snapshot | ClusterSnapshot":
        """What is to be seen now; ValueError where nothing can be shown."""

    def close(self) -> None:
        """Closes connections."""


@click.command()
@click.argument("source", metavar="[JOB|NODE|URL]", required=False)
@click.option("--job-id", metavar="ID", help="Job to select from a Prometheus; default all jobs.")
@click.option("--node", metavar="NAME", help="Node to select from a Prometheus; default all.")
@option(
    "--every",
    "every_seconds",
    type=DurationRange(0.2, 3600),
    default="2s",
    help="Time between two frames, such as 500ms or 5s.",
)
@click.option(
    "--rows", type=click.IntRange(1, _ALL_ROWS), help="Number of ranks; default as many as fit."
)
@click.option(
    "--cluster", "cluster_url", metavar="URL", help="Show all jobs of a Prometheus, worst first."
)
@click.option("--all", "all_jobs", is_flag=True, help="Show the running jobs of this node.")
@click.option("--once", is_flag=True, help="Print one frame and end.")
def top(
    *,
    source: str | None,
    job_id: str | None,
    node: str | None,
    every_seconds: float,
    rows: int | None,
    cluster_url: str | None,
    all_jobs: bool,
    once: bool,
) -> None:
    """Watch the ranks of JOB (id or folder), of a NODE, of a Prometheus URL, or of the newest job.

    Sorted by lag: own work per step beyond the median of the job. Ctrl-C ends it.
    """
    try:
        if cluster_url is not None:
            snapshots = _open_cluster(cluster_url, source, job_id, node, all_jobs=all_jobs)
        else:
            snapshots = _open_source(source, job_id, node, all_jobs=all_jobs)
        with closing(snapshots):
            _show(snapshots, every_seconds=every_seconds, rows=rows, once=once)
    except (ValueError, OSError) as error:
        raise click.UsageError(printable(str(error))) from error


def _show(source: SnapshotSource, *, every_seconds: float, rows: int | None, once: bool) -> None:
    from rich.console import Console  # noqa: PLC0415  # --help need not wait for it

    first, console = source.poll(), Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_OF_FILES)
        rows = rows or (_ALL_ROWS if once else None)
    if once:
        console.print(first.view(rows))
        return
    # Without a handler SIGTERM would leave the terminal on its alternate screen.
    signal.signal(signal.SIGTERM, _interrupt)
    _watch(console, source, first, every_seconds=every_seconds, rows=rows)


def _open_cluster(url: str, *others: str | None, all_jobs: bool) -> SnapshotSource:
    from lockstep_reports.top.cluster import ClusterSource  # noqa: PLC0415  # loads httpx

    if all_jobs or any(others):
        raise ValueError("--cluster shows all jobs; leave out JOB, --job-id, --node and --all")
    return ClusterSource(url)


def _open_source(
    source: str | None, job_id: str | None, node: str | None, *, all_jobs: bool
) -> SnapshotSource:
    if source is not None and all_jobs:
        raise ValueError(f"--all is every job of this node; leave out {source}, or leave out --all")
    if source is not None and source.startswith(_URLS):
        from lockstep_reports.top.prometheus import PrometheusSource  # noqa: PLC0415  # loads httpx

        return PrometheusSource(source, job_id, node)
    if job_id is not None or node is not None:
        raise ValueError("--job-id and --node are for a Prometheus; give its http:// address")
    from lockstep_reports.top.pages import PageSource  # noqa: PLC0415  # loads numpy

    return PageSource(None if all_jobs else source or newest_job().name)


def _watch(
    console: "Console",
    source: SnapshotSource,
    snapshot: "Snapshot | ClusterSnapshot",
    *,
    every_seconds: float,
    rows: int | None,
) -> None:
    from rich.live import Live  # noqa: PLC0415  # only to watch

    with (
        Live(snapshot.view(rows), console=console, screen=True, auto_refresh=False) as live,
        suppress(KeyboardInterrupt),
    ):
        while True:
            begin = time.monotonic()
            live.update(snapshot.view(rows), refresh=True)
            # From begin to begin; the pause keeps a slow server from being asked without end.
            time.sleep(max(0.05, every_seconds - (time.monotonic() - begin)))
            snapshot = _poll_again(source, snapshot)


def _poll_again(
    source: SnapshotSource, last: "Snapshot | ClusterSnapshot"
) -> "Snapshot | ClusterSnapshot":
    try:
        return source.poll()
    except (ValueError, OSError) as error:
        return replace(last, notes=(f"not read again: {error}",))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
