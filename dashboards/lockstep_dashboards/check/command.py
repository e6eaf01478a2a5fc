"""Runs all queries of the boards against a Prometheus, and says which panels are empty."""

import time

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lockstep_cli.options import DurationRange, bad_input
from lockstep_dashboards.check.queries import Finding, check_board
from lockstep_dashboards.opening import open_board, read_wishes
from lockstep_dashboards.scope import Scope
from lockstep_dashboards.snapshot.shipped import SHIPPED, find_board
from lockstep_prometheus.client import Prometheus
from lockstep_records.files.jobs import check_job_id


@click.command()
@click.option("--prometheus", "url", required=True, help="Address, such as http://127.0.0.1:9090.")
@click.option("--board", "names", multiple=True, help="Board, such as job, or a path to JSON.")
@click.option("--job-id", help="Job of the job board; the newest by default.")
@click.option("--cluster", help="Cluster that is chosen; all clusters by default.")
@click.option(
    "--var", "variables", multiple=True, metavar="NAME=VALUE", help="Value of another variable."
)
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
    help="Scrape interval of the data source; rates reach over four of them.",
)
@click.option("--full", "is_full", is_flag=True, help="Accept no empty panel, whatever its reason.")
def check(
    *,
    url: str,
    names: tuple[str, ...],
    job_id: str | None,
    cluster: str | None,
    variables: tuple[str, ...],
    range_seconds: float,
    scrape_seconds: float,
    is_full: bool,
) -> int:
    """Run every query of the boards; exit 1 when one fails or a panel is empty."""
    with bad_input():
        scope = Scope(
            chosen=read_wishes(
                variables, job_id and check_job_id(job_id), (cluster,) if cluster else ()
            ),
            end=time.time(),
            range_seconds=range_seconds,
            scrape_seconds=scrape_seconds,
        )
        boards = [find_board(name)[1] for name in names] or list(SHIPPED.values())
        with Prometheus(url) as server:
            findings = [
                finding
                for board in boards
                for finding in check_board(
                    board, open_board(board, scope, server), server, is_full=is_full
                )
            ]
    _print_findings(findings)
    return 1 if any(finding.problem for finding in findings) else 0


def _print_findings(findings: list[Finding]) -> None:
    table = Table("panel", "series", "problem", "query", title_justify="left")
    for finding in findings:
        problem = f"[red]{escape(finding.problem)}[/red]" if finding.problem else finding.remark
        queries = "\n".join(finding.queries) if finding.problem else ""
        table.add_row(finding.panel, str(finding.num_series), problem, escape(queries))
    Console().print(table)
    bad = sum(bool(finding.problem) for finding in findings)
    slowest = max(findings, key=lambda finding: finding.seconds)
    click.echo(
        f"{len(findings)} panels, annotations and variables, {bad} with a problem;"
        f" the slowest query took {slowest.seconds:.2f} s ({slowest.panel})"
    )
