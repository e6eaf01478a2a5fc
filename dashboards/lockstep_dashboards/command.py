"""Generates the Grafana boards, and runs all their queries against a Prometheus."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lockstep_cli.options import DurationRange, bad_input, option
from lockstep_dashboards.grafana import FORMATS
from lockstep_dashboards.layout import BOARDS, SHIPPED, find_board
from lockstep_dashboards.panel import MAX_SERIES, Board, Panel, View
from lockstep_dashboards.scope import (
    Scope,
    offered_values,
    open_board,
    read_wishes,
    run_over,
    run_query,
)
from lockstep_dashboards.snapshot.command import snapshot
from lockstep_dashboards.snapshot.server import serve
from lockstep_prometheus.client import Prometheus, QueryError, Series
from lockstep_records.file_access.atomic_file import write_atomically
from lockstep_records.files.jobs import check_job_id

EMPTY = "empty"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one panel, annotation or variable.

    Attributes:
        num_series: series with a value within the range; of a table, rows.
        error: what is wrong whatever the data; empty where nothing is.
        empty: numbers of the queries that have no series.
        excuse: why the panel may have no series.
    """

    board: str
    panel: str
    queries: tuple[str, ...]
    num_series: int
    seconds: float = 0.0
    error: str = ""
    empty: frozenset[int] = frozenset()
    excuse: str = ""

    @property
    def problem(self) -> str:
        """What has to be mended; empty where nothing has."""
        return self.error or (EMPTY if self.empty and not self.excuse else "")

    @property
    def remark(self) -> str:
        """Why the panel may have no series, where it has none."""
        return self.excuse if self.empty and not self.error else ""


def check_board(
    board: Board, scope: Scope, server: Prometheus, *, is_full: bool = False
) -> list[Finding]:
    """One finding a panel, annotation and variable; PrometheusError where none answers.

    Where ``is_full``, the data set has something for every panel, and none may be empty.
    """
    findings = [
        _check_panel(board, panel, scope, server, is_full=is_full)
        for panel in board.panels
        if panel.queries
    ]
    for each in board.annotations:
        run = partial(run_over, each.expression, scope, server)
        found = _ask(board, f"annotation {each.title}", scope.fill(each.expression), run)
        excuse = "" if is_full else "nothing to annotate"
        empty = frozenset() if found.num_series else frozenset({0})
        findings.append(replace(found, empty=empty, excuse=excuse))
    for variable in board.variables:
        offered = partial(offered_values, variable, scope, server)
        found = _ask(board, f"variable {variable.name}", scope.fill(variable.source), offered)
        nothing = "" if found.num_series else "offers no value"
        findings.append(replace(found, error=found.error or nothing))
    return findings


def _check_panel(
    board: Board, panel: Panel, scope: Scope, server: Prometheus, *, is_full: bool
) -> Finding:
    answers = [
        _ask(
            board,
            panel.title,
            scope.fill(query.expression),
            partial(run_query, panel, query, scope, server),
        )
        for query in panel.queries
    ]
    errors = [answer.error for answer in answers if answer.error]
    counts = [answer.num_series for answer in answers]
    # The columns of a table share its rows.
    total = max(counts) if panel.view is View.TABLE else sum(counts)
    if total > MAX_SERIES:
        errors.append(f"more than {MAX_SERIES} series")
    return Finding(
        board=board.title,
        panel=panel.title,
        queries=tuple(query for answer in answers for query in answer.queries),
        num_series=total,
        seconds=max(answer.seconds for answer in answers),
        error="; ".join(errors),
        empty=frozenset(number for number, count in enumerate(counts) if not count),
        excuse="" if is_full else panel.may_be_empty,
    )


def _ask(board: Board, name: str, query: str, run: Callable[[], Sequence[object]]) -> Finding:
    """How many values or series with a value a query gives, how long it takes, and its error."""
    started, number, error = time.monotonic(), 0, ""
    try:
        number = sum(_has_value(each) for each in run())
    except QueryError as refusal:
        error = str(refusal)
    seconds = time.monotonic() - started
    return Finding(
        board=board.title, panel=name, queries=(query,), num_series=number, seconds=seconds,
        error=error,
    )  # fmt: skip


def _has_value(each: object) -> bool:
    return not isinstance(each, Series) or any(not math.isnan(value) for _, value in each.points)


@click.command()
@click.option("--prometheus", "url", required=True, help="Address, such as http://127.0.0.1:9090.")
@click.option("--board", "names", multiple=True, help="Board, such as job; repeatable.")
@click.option("--job-id", help="Job of the job board; the newest by default.")
@click.option("--cluster", help="Cluster that is chosen; all clusters by default.")
@click.option(
    "--var", "variables", multiple=True, metavar="NAME=VALUE", help="Value of another variable."
)
@option(
    "--range",
    "range_seconds",
    type=DurationRange(1),
    default="15m",
    help="Range of the queries, until now.",
)
@option(
    "--scrape-interval",
    "scrape_seconds",
    type=DurationRange(0.1),
    default="15s",
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


_GENERATED = Path("dashboards/generated")


@click.group()
def dashboards() -> None:
    """Generate Grafana boards from the catalogue, check them on a Prometheus, and draw them."""


dashboards.add_command(snapshot)
dashboards.add_command(serve)
dashboards.add_command(check)


@dashboards.command()
@option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=_GENERATED,
    help="Folder that the boards are written to.",
)
@option(
    "--format",
    "format_",
    type=click.Choice(sorted(FORMATS)),
    default="json",
    help="json: the boards; configmap: one for each board, for Kubernetes; provisioning: a folder"
    " that Grafana reads at start, boards included.",
)
@click.option("--check", "only_compare", is_flag=True, help="Write nothing; exit 1 on differences.")
def generate(*, out: Path, format_: str, only_compare: bool) -> int:
    """Write the boards as files that Grafana 10.3 to 13 load."""
    if out == _GENERATED and format_ != "json":
        raise click.UsageError(f"--format {format_} needs a folder of its own; name one by --out")
    if out == _GENERATED and not out.is_dir():
        raise click.UsageError(f"folder {out} does not exist; name one by --out")
    texts = {out / name: text for name, text in FORMATS[format_](BOARDS).items()}
    try:
        if only_compare:
            stale = [p for p, text in texts.items() if not p.is_file() or p.read_text() != text]
            for path in stale:
                click.echo(f"{path} differs from the board; run lockstep dashboards generate")
            return 1 if stale else 0
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
            click.echo(path)
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}; name a writable folder") from error
    return 0
