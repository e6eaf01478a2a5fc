"""Three plain pages for people without Grafana: jobs, one job, costs. They need no other file."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from lockstep_catalogue.limits import SLO_GOALS
from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_ledger.billing import CHOSEN, DIMENSIONS, QUESTION, cost_rows, read_question
from lockstep_ledger.store.queries import Limits
from lockstep_ledger.store.windows import SloKey, WindowReader
from lockstep_ledger.tables import money
from lockstep_ledger.web.api import CHOICES, Api, read_parameters
from lockstep_records.text.durations import format_duration, format_time

_MINUTE_SECONDS = 60.0
_HOUR_SECONDS = 3600.0
_DAY_SECONDS = 86_400.0
_FILTERS = ("status", "outcome", "failure_class", "project", "queue", "user")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("lockstep_ledger.web"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters.update(
        when=format_time,
        duration=duration,
        hours=hours,
        money=money,
        with_goal=write_with_goal,
        quoted=lambda text: quote(text, safe=""),
        values_of=lambda row: row.values(),
    )
    return environment


def duration(seconds: float | None) -> str:
    """A duration for people, in its two largest units."""
    if seconds is None:
        return ""
    if seconds < _MINUTE_SECONDS:
        return format_duration(round(max(seconds, 0.0)))
    units = (("d", _DAY_SECONDS), ("h", _HOUR_SECONDS), ("m", _MINUTE_SECONDS), ("s", 1.0))
    words, rest = [], seconds
    for unit, unit_seconds in units:
        count, rest = divmod(rest, unit_seconds)
        if count:
            words.append(f"{count:.0f} {unit}")
    return " ".join(words[:2])


def hours(gpu_seconds: float) -> str:
    """GPU time in hours."""
    return f"{gpu_seconds / _HOUR_SECONDS:,.1f}"


def write_with_goal(ratio: float | None, slo: str) -> str | None:
    """A share beside the goal of its objective; None where it is unknown."""
    goal = f" of {SLO_GOALS[slo]:.1%}" if slo in SLO_GOALS else ""
    return None if ratio is None else f"{ratio:.1%}{goal}"


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages."""

    windows: WindowReader
    api: Api
    _templates: Environment = field(default_factory=_environment)

    def jobs(self, request: Request) -> Response:
        """GET /: the jobs, with filters, and what became of those of the last days."""
        page = self.api.page(request)
        given = dict(request.query_params)
        following = page["next"] and "?" + urlencode({**given, "after": page["next"]})
        counts = self.windows.counts
        return self._render(
            "jobs.html",
            jobs=page["jobs"],
            next=following,
            given=given,
            filters=_FILTERS,
            choices=CHOICES,
            windows=_success(counts.slo if counts else {}, request.state.limits),
            goals=SLO_GOALS,
        )

    def job(self, request: Request) -> Response:
        """GET /jobs/ID: one job."""
        document = self.api.find(request)
        if document is None:
            return HTMLResponse("<p>No such job. <a href='/'>All jobs</a></p>", 404)
        return self._render("job.html", job=document, goodput=_shares(document["goodput"]))

    def costs(self, request: Request) -> Response:
        """GET /costs: what GPU time cost, by what the query asks for, next to what was planned."""
        given = read_parameters(request, QUESTION)
        with self.api.opened(request) as bills:
            question = read_question(given, bills.today)
            found = bills.costs(question)
            statement = bills.statement(f"{question.first:%Y-%m}")
        columns, rows = cost_rows(question.by, found.rows)
        return self._render(
            "costs.html",
            question=question,
            columns=columns,
            rows=rows,
            totals=cost_rows(question.by, found.totals)[1],
            statement=statement,
            given=given,
            csv_query=urlencode({**given, "format": "csv"}),
            dimensions=DIMENSIONS,
            chosen=CHOSEN,
        )

    def _render(self, name: str, **values: Any) -> Response:
        return HTMLResponse(self._templates.get_template(name).render(**values))


def _success(
    slo: dict[SloKey, tuple[float, float]], limits: Limits
) -> list[tuple[str, str, str, float, float]]:
    """Cluster, objective, window, good and total, over all classes, of what has events.

    A reader of some projects gets none: the counts do not name the project.
    """
    clusters = limits.get("cluster")
    objectives = ("job_success", "goodput", "ettr", "resume_success")
    windows = ("24h", "7d", "28d")
    sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (cluster, _, name, window), (good, total) in slo.items():
        is_visible = "project" not in limits and (clusters is None or cluster in clusters)
        if is_visible and name in objectives and window in windows:
            counts = sums[cluster, name, window]
            counts[0] += good
            counts[1] += total
    rows = [(*key, good, total) for key, (good, total) in sums.items() if total]
    return sorted(rows, key=lambda row: (row[0], row[1], windows.index(row[2])))


def _shares(goodput: dict[str, float]) -> list[tuple[str, float, float]]:
    total = sum(goodput.values())
    return [
        (state, goodput[state], goodput[state] / total)
        for state in GOODPUT_STATES
        if goodput.get(state) and total
    ]
