"""Review a week: failures by class and node, trends of objectives, cost."""

from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta

import click

from lockstep_cli.options import Parsed
from lockstep_ledger.commands.inspect import reading
from lockstep_ledger.options import json_option, store_option
from lockstep_ledger.review import Review, parse_week, weekly_review
from lockstep_ledger.tables import expectation_rows, money, percent, print_json, print_table

_MAX_ROWS = 20


def _this_week() -> date:
    today = datetime.now(UTC).date()
    return today - timedelta(days=today.weekday())


@click.command()
@store_option
@click.option(
    "--week",
    type=Parsed("YEAR-WWEEK", parse_week),
    default=_this_week,
    help="Week such as 2026-W47, in UTC.  [default: the current week]",
)
@click.option("--cluster", help="Only jobs of this cluster.")
@json_option
def review(*, store: str, week: date, cluster: str | None, is_json: bool) -> None:
    """Review a week: failed jobs by class and node, trends, worst nodes, cost."""
    with reading(store) as connection:
        reviewed = weekly_review(connection, week, cluster)
    if is_json:
        print_json(reviewed.document())
    else:
        _print(reviewed)


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1%}"


def _print(reviewed: Review) -> None:
    columns = ("outcome", "class", "jobs", "GPU hours")
    print_table(
        f"{reviewed.week}: jobs that ended",
        columns,
        [tuple(row.values()) for row in reviewed.outcomes],
    )
    columns = ("class", "cause", "jobs", "GPU hours")
    print_table(
        "Failures by class and cause", columns, [tuple(row.values()) for row in reviewed.failures]
    )
    nodes = [
        (row["node"], row["failures"], ", ".join(f"{c} {n}" for c, n in row["causes"].items()))
        for row in reviewed.nodes[:_MAX_ROWS]
    ]
    print_table("Worst nodes", ("node", "failures", "causes"), nodes)
    _print_trends(reviewed)
    rows = expectation_rows(asdict(reviewed.expectation))
    print_table("Effective training time, all jobs", ("measure", "value"), rows)
    projects = [
        (r["project"] or "(none)", r["jobs"], r["gpu_hours"], money(r["costs"]))
        for r in reviewed.projects
    ]
    print_table("Projects", ("project", "jobs", "GPU hours", "cost"), projects[:_MAX_ROWS])
    failed = [tuple(row.values()) for row in reviewed.failed_jobs[:_MAX_ROWS]]
    columns_of_failed = ("job", "cluster", "project", "outcome", "class", "cause", "reason", "node",
                         "rank", "GPU hours")  # fmt: skip
    print_table(
        f"Failed jobs, the costliest of {len(reviewed.failed_jobs)}", columns_of_failed, failed
    )


def _print_trends(reviewed: Review) -> None:
    trends = [
        (
            trend.week, trend.jobs, percent(trend.succeeded, trend.jobs), trend.gpu_hours,
            percent(trend.productive_gpu_hours, trend.gpu_hours),
            _share(trend.job_weighted_goodput), _share(trend.ettr),
            percent(trend.deadlines_met, trend.deadlines), trend.requeues, trend.preemptions,
            money(trend.costs),
        )
        for trend in reviewed.trends
    ]  # fmt: skip
    columns_of_trends = ("week", "jobs", "success", "GPU hours", "goodput", "by job", "ETTR",
                         "deadlines met",
                         "requeues", "preemptions", "cost")  # fmt: skip
    print_table("Trends", columns_of_trends, trends)
