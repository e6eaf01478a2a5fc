"""Review a week: failures by class and node, trends of objectives, cost."""

import json
import re
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import click
from sqlalchemy import Connection, select

from lockstep_cli.options import Parsed
from lockstep_ledger.commands.inspect import reading
from lockstep_ledger.merge.effective_time import (
    Expectation,
    expectation,
    interruptions_of,
    sum_interruptions,
)
from lockstep_ledger.options import json_option, store_option
from lockstep_ledger.store.tables import jobs
from lockstep_ledger.tables import expectation_rows, money, percent, print_json, print_table
from lockstep_outcomes.prices.calendar import KNOWN_YEARS
from lockstep_outcomes.progress.ettr import JobGoodput, job_weighted_ratio, sum_goodput

_WEEKS = 4
_WEEK = re.compile(r"([0-9]{4})-W([0-9]{2})")
_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WeekTrend:
    """Counts of one week; ``jobs`` are those that count for the objective of success.

    ``productive_gpu_hours`` over ``gpu_hours`` is the goodput weighted by GPU time; ``costs`` are
    by currency.
    """

    week: str
    jobs: int
    succeeded: int
    gpu_hours: float
    productive_gpu_hours: float
    job_weighted_goodput: float | None
    ettr: float | None
    deadlines: int
    deadlines_met: int
    requeues: int
    preemptions: int
    costs: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """A week of one store.

    Attributes:
        outcomes: number of jobs that ended, by outcome and failure class.
        failures: number of jobs by failure class and cause.
        nodes: number of failures by the node to blame, with their causes; the worst first.
        projects: jobs, GPU hours and costs by currency.
        trends: this week and those before it, the oldest first.
        expectation: of the cluster's jobs together, by the failures and checkpoints of the week.
        failed_jobs: id, cluster, class, cause, node and GPU hours lost; the costliest first.
    """

    week: str
    outcomes: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    projects: list[dict[str, Any]]
    trends: list[WeekTrend]
    failed_jobs: list[dict[str, Any]]
    expectation: Expectation

    def document(self) -> dict[str, Any]:
        """The review as JSON."""
        return asdict(self)


def parse_week(text: str) -> date:
    """The Monday of a week such as 2026-W47.

    Raises:
        ValueError: the text is not a week.
    """
    refusal = ValueError(f"{text!r} is not a week; write a year and a week, such as 2026-W47")
    match = _WEEK.fullmatch(text)
    if match is None or int(match[1]) not in KNOWN_YEARS:
        raise refusal
    try:
        return date.fromisocalendar(int(match[1]), int(match[2]), 1)
    except ValueError as error:
        raise refusal from error


def name_week(monday: date) -> str:
    """The name of the week that begins on a Monday."""
    year, week, _ = monday.isocalendar()
    return f"{year:04d}-W{week:02d}"


def weekly_review(connection: Connection, monday: date, cluster: str | None = None) -> Review:
    """The review of the week that begins on a Monday, in UTC, by the ends of jobs."""
    weeks = [monday - timedelta(weeks=back) for back in range(_WEEKS - 1, -1, -1)]
    rows = {start: _ended_in(connection, start, cluster) for start in weeks}
    own = rows[monday]
    failed = [row for row in own if row["outcome"] in {"failed", "time_limit", "unknown"}]
    return Review(
        week=name_week(monday),
        outcomes=_counted(own, ("outcome", "failure_class")),
        failures=_counted(failed, ("failure_class", "cause")),
        nodes=_worst_nodes(failed),
        projects=_projects(own),
        trends=[_trend(start, rows[start]) for start in weeks],
        failed_jobs=[_failed_job(row) for row in sorted(failed, key=lambda r: -r["gpu_seconds"])],
        expectation=expectation(sum_interruptions(row["interruptions"] for row in own)),
    )


def _ended_in(connection: Connection, monday: date, cluster: str | None) -> list[dict[str, Any]]:
    begin = datetime.combine(monday, time.min, UTC).timestamp()
    end = datetime.combine(monday + timedelta(weeks=1), time.min, UTC).timestamp()
    query = select(jobs).where(
        jobs.c.status == "finished", jobs.c.ended >= begin, jobs.c.ended < end
    )
    if cluster is not None:
        query = query.where(jobs.c.cluster == cluster)
    rows = []
    for row in connection.execute(query).mappings():
        record = json.loads(row["state"])
        names = ("goodput", "deadline", "requeues", "preemptions", "cause_rank", "reason")
        rows.append(
            {**row, **{name: record[name] for name in names}}
            | {"interruptions": interruptions_of(record)}
        )
    return rows


def _counted(rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    counts = Counter(tuple(row[name] for name in names) for row in rows)
    hours: dict[tuple[Any, ...], float] = defaultdict(float)
    for row in rows:
        hours[tuple(row[name] for name in names)] += row["gpu_seconds"] / _HOUR_SECONDS
    return [
        {**dict(zip(names, key, strict=True)), "jobs": count, "gpu_hours": hours[key]}
        for key, count in sorted(counts.items(), key=lambda entry: (-entry[1], str(entry[0])))
    ]


def _worst_nodes(failed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nodes that failures began on; what owners broke says nothing of a node."""
    causes: dict[str, Counter[str]] = defaultdict(Counter)
    for row in failed:
        if row["cause_node"] and row["failure_class"] != "user":
            causes[row["cause_node"]][row["cause"] or "unknown"] += 1
    ranked = sorted(causes.items(), key=lambda entry: (-entry[1].total(), entry[0]))
    return [
        {"node": node, "failures": counts.total(), "causes": dict(counts)}
        for node, counts in ranked
    ]


def _projects(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_project: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_project[row["project"]].append(row)
    projects = [
        {
            "project": project,
            "jobs": len(own),
            "gpu_hours": sum(row["gpu_seconds"] for row in own) / _HOUR_SECONDS,
            "costs": _costs(own),
        }
        for project, own in by_project.items()
    ]
    return sorted(projects, key=lambda entry: (-entry["gpu_hours"], entry["project"]))


def _costs(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Sums by currency, never over two."""
    costs: dict[str, float] = defaultdict(float)
    for row in rows:
        for currency, amount in row["costs"].items():
            costs[currency] += amount
    return dict(costs)


def _trend(monday: date, rows: list[dict[str, Any]]) -> WeekTrend:
    counted = [
        row for row in rows if row["outcome"] != "cancelled" and row["failure_class"] != "user"
    ]
    with_deadline = [row for row in rows if row["deadline"] and row["outcome"] != "cancelled"]
    met = [
        row
        for row in with_deadline
        if row["outcome"] == "succeeded" and row["ended"] <= row["deadline"]
    ]
    goodputs = [JobGoodput(gpu_seconds=row["goodput"]) for row in rows]
    return WeekTrend(
        week=name_week(monday),
        jobs=len(counted),
        succeeded=sum(row["outcome"] == "succeeded" for row in counted),
        gpu_hours=sum(row["gpu_seconds"] for row in rows) / _HOUR_SECONDS,
        productive_gpu_hours=sum(row["goodput"].get("productive", 0.0) for row in rows)
        / _HOUR_SECONDS,
        job_weighted_goodput=job_weighted_ratio(goodputs),
        ettr=sum_goodput(goodputs).ettr_ratio,
        deadlines=len(with_deadline),
        deadlines_met=len(met),
        requeues=sum(row["requeues"] for row in rows),
        preemptions=sum(row["preemptions"] for row in rows),
        costs=_costs(rows),
    )


def _failed_job(row: dict[str, Any]) -> dict[str, Any]:
    names = ("job_id", "cluster", "project", "outcome", "failure_class", "cause", "reason",
             "cause_node", "cause_rank")  # fmt: skip
    return {**{name: row[name] for name in names}, "gpu_hours": row["gpu_seconds"] / _HOUR_SECONDS}


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
