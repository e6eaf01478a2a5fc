"""Generates the Grafana boards, and runs all their queries against a Prometheus."""

import time
from pathlib import Path

import click
import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lockstep_catalogue.labels import CLUSTER, JOB_ID
from lockstep_dashboards.boards import BOARDS
from lockstep_dashboards.check import Finding, check_board
from lockstep_dashboards.grafana import board_json
from lockstep_dashboards.scope import Scope
from lockstep_dashboards.snapshot.command import snapshot
from lockstep_dashboards.snapshot.server import serve
from lockstep_records.atomic_file import write_atomically
from lockstep_records.jobs import check_job_id
from lockstep_records.options import DurationRange

_GENERATED = Path("dashboards/generated")
_TIMEOUT_SECONDS = 30.0


@click.group()
def dashboards() -> None:
    """Generate Grafana boards from the catalogue, check them on a Prometheus, and draw them."""


dashboards.add_command(snapshot)
dashboards.add_command(serve)


@dashboards.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=_GENERATED,
    show_default=True,
    help="Folder that the boards are written to.",
)
@click.option("--check", "only_compare", is_flag=True, help="Write nothing; exit 1 on differences.")
def generate(*, out: Path, only_compare: bool) -> int:
    """Write the boards as JSON files that Grafana 10.3 to 13 load."""
    if out == _GENERATED and not out.is_dir():
        raise click.UsageError(f"there is no folder {out} here; name one by --out")
    texts = {out / name: board_json(board) for name, board in BOARDS.items()}
    try:
        if only_compare:
            return _report_stale(texts)
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_atomically(path, text)
            click.echo(path)
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}; name a writable folder") from error
    return 0


def _report_stale(texts: dict[Path, str]) -> int:
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        click.echo(f"{path} differs from the generated board; run lockstep dashboards generate")
    return 1 if stale else 0


@dashboards.command()
@click.option("--prometheus", "url", required=True, help="Address, such as http://127.0.0.1:9090.")
@click.option("--job-id", required=True, help="Job that the queries are restricted to.")
@click.option("--cluster", default=None, help="Cluster of the job; all clusters by default.")
@click.option(
    "--range",
    "range_seconds",
    type=DurationRange(1),
    default="15m",
    show_default=True,
    help="Range of the queries, until now.",
)
@click.option(
    "--scrape-interval",
    "scrape_seconds",
    type=DurationRange(0.1),
    default="15s",
    show_default=True,
    help="Scrape interval of the data source; rates reach over five of them.",
)
def check(
    *, url: str, job_id: str, cluster: str | None, range_seconds: float, scrape_seconds: float
) -> int:
    """Run every query of every board; exit 1 when one fails or a panel is empty."""
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--prometheus {url!r} must begin with http:// or https://")
    try:
        scope = Scope(
            chosen=_chosen(check_job_id(job_id), cluster),
            end=time.time(),
            range_seconds=range_seconds,
            scrape_seconds=scrape_seconds,
        )
        with httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            findings = [
                finding
                for board in BOARDS.values()
                for finding in check_board(board, scope, client)
            ]
    except (ValueError, httpx.InvalidURL) as error:
        raise click.UsageError(str(error)) from error
    _print_findings(findings)
    return 1 if any(finding.problem for finding in findings) else 0


def _chosen(job_id: str, cluster: str | None) -> dict[str, tuple[str, ...]]:
    chosen: dict[str, tuple[str, ...]] = {JOB_ID.name: (job_id,)}
    return chosen | ({CLUSTER.name: (cluster,)} if cluster else {})


def _print_findings(findings: list[Finding]) -> None:
    table = Table("panel", "series", "problem", "query", title_justify="left")
    for finding in findings:
        problem = f"[red]{escape(finding.problem)}[/red]" if finding.problem else finding.remark
        queries = "\n".join(finding.queries) if finding.problem else ""
        table.add_row(finding.panel, str(finding.num_series), problem, escape(queries))
    Console().print(table)
    bad = sum(bool(finding.problem) for finding in findings)
    click.echo(f"{len(findings)} panels and annotations, {bad} with a problem")
