"""Review a week: failures by class and node, trends of objectives, cost."""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta
from operator import attrgetter
from typing import Any

import click
from sqlalchemy import Connection, or_, select

from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_cli.options import Parsed
from lockstep_ledger.commands.inspect import reading
from lockstep_ledger.merge.counted import met_deadline
from lockstep_ledger.merge.record import (
    Expectation,
    Record,
    expectation,
    interruptions_of,
    record_of_json,
    split_at,
    sum_interruptions,
)
from lockstep_ledger.options import json_option, store_option
from lockstep_ledger.store.tables import jobs
from lockstep_ledger.tables import expectation_rows, money, percent, print_json, print_table
from lockstep_outcomes.prices.price import KNOWN_YEARS
from lockstep_outcomes.progress.goodput import JobGoodput, job_weighted_ratio, sum_goodput

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
        nodes: number of failures by the node to blame, with their causes; the worst first.
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


def parse_week(text: str) -> date:
    """The Monday of a week such as 2026-W47; ValueError for any other text."""
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
    """The review of the week that begins on a Monday, in UTC, by what had ended then."""
    weeks = [monday - timedelta(weeks=back) for back in range(_WEEKS - 1, -1, -1)]
    ended = _ended_in(connection, weeks, cluster)
    own = ended[monday]
    failed = [job for job in own if job.outcome in {"failed", "time_limit", "unknown"}]
    return Review(
        week=name_week(monday),
        outcomes=_counted(own, ("outcome", "failure_class")),
        failures=_counted(failed, ("failure_class", "cause")),
        nodes=_worst_nodes(failed),
        projects=_projects(own),
        trends=[_trend(start, ended[start]) for start in weeks],
        failed_jobs=[
            {name: getattr(job, name) for name in _FAILED} | {"gpu_hours": _hours([job])}
            for job in sorted(failed, key=lambda job: -job.gpu_seconds)
        ],
        expectation=expectation(sum_interruptions(map(interruptions_of, own))),
    )


def _ended_in(
    connection: Connection, weeks: Sequence[date], cluster: str | None
) -> dict[date, list[Record]]:
    """By week the jobs that had ended in it; one that ran again later too, with its runs so far."""
    mondays = (*weeks, weeks[-1] + timedelta(weeks=1))
    moments = [datetime.combine(day, time.min, UTC).timestamp() for day in mondays]
    query = select(jobs.c.state).where(
        jobs.c.started < moments[-1], or_(jobs.c.ended >= moments[0], jobs.c.status != "finished")
    )
    if cluster is not None:
        query = query.where(jobs.c.cluster == cluster)
    found: dict[date, list[Record]] = {start: [] for start in weeks}
    for state in connection.execute(query.order_by(jobs.c.number)).scalars():
        for job in split_at(record_of_json(state), moments):
            if job.ended is not None and job.ended >= moments[0]:
                found[weeks[bisect_right(moments, job.ended) - 1]].append(job)
    return found


def _counted(ended: list[Record], names: tuple[str, ...]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for job in ended:
        groups[attrgetter(*names)(job)].append(job.gpu_seconds / _HOUR_SECONDS)
    return [
        {**dict(zip(names, key, strict=True)), "jobs": len(hours), "gpu_hours": sum(hours)}
        for key, hours in sorted(groups.items(), key=lambda entry: (-len(entry[1]), str(entry[0])))
    ]


def _worst_nodes(failed: list[Record]) -> list[dict[str, Any]]:
    """Nodes that failures began on; what owners broke says nothing of a node."""
    causes: dict[str, Counter[str]] = defaultdict(Counter)
    for job in failed:
        if job.cause_node and job.failure_class != "user":
            causes[job.cause_node][job.cause or "unknown"] += 1
    ranked = sorted(causes.items(), key=lambda entry: (-entry[1].total(), entry[0]))
    return [
        {"node": node, "failures": counts.total(), "causes": dict(counts)}
        for node, counts in ranked
    ]


def _projects(ended: list[Record]) -> list[dict[str, Any]]:
    by_project: dict[str, list[Record]] = defaultdict(list)
    for job in ended:
        by_project[job.project].append(job)
    projects = [
        {"project": project, "jobs": len(own), "gpu_hours": _hours(own), "costs": _costs(own)}
        for project, own in by_project.items()
    ]
    return sorted(projects, key=lambda entry: (-entry["gpu_hours"], entry["project"]))


def _hours(ended: list[Record]) -> float:
    return sum(job.gpu_seconds for job in ended) / _HOUR_SECONDS


def _costs(ended: list[Record]) -> dict[str, float]:
    """Sums by currency, never over two."""
    costs: dict[str, float] = defaultdict(float)
    for job in ended:
        for currency, amount in job.costs.items():
            costs[currency] += amount
    return dict(costs)


def _trend(monday: date, ended: list[Record]) -> WeekTrend:
    counted = [job for job in ended if job.outcome != "cancelled" and job.failure_class != "user"]
    met = [is_met for job in ended if (is_met := met_deadline(job)) is not None]
    goodputs = [
        JobGoodput(gpu_seconds={s: job.goodput[s] for s in GOODPUT_STATES if s in job.goodput})
        for job in ended
    ]
    return WeekTrend(
        week=name_week(monday),
        jobs=len(counted),
        succeeded=sum(job.outcome == "succeeded" for job in counted),
        gpu_hours=_hours(ended),
        productive_gpu_hours=sum(job.goodput.get("productive", 0.0) for job in ended)
        / _HOUR_SECONDS,
        job_weighted_goodput=job_weighted_ratio(goodputs),
        ettr=sum_goodput(goodputs).ettr_ratio,
        deadlines=len(met),
        deadlines_met=sum(met),
        requeues=sum(job.requeues for job in ended),
        preemptions=sum(job.preemptions for job in ended),
        costs=_costs(ended),
    )


_FAILED = ("job_id", "cluster", "project", "outcome", "failure_class", "cause", "reason",
           "cause_node", "cause_rank")  # fmt: skip


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
        print_json(asdict(reviewed))
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
