"""The application: every path, its pages for people, and the text of a scrape."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lockstep_catalogue import Endpoint, Kind, Metric, ledger, metrics_of
from lockstep_catalogue.limits import SLO_GOALS
from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_cli.small_server import Hosts, RateLimit
from lockstep_ledger.billing import CHOSEN, DIMENSIONS, QUESTION, cost_rows, read_question
from lockstep_ledger.merge.counted import Labels
from lockstep_ledger.store import queries
from lockstep_ledger.store.counters import CounterRow, Series
from lockstep_ledger.store.windows import SloKey, Target, WindowReader
from lockstep_ledger.store.writer import SharedWriter
from lockstep_ledger.tables import money
from lockstep_ledger.web.api import CHOICES, Api, Readers, document, read_parameters
from lockstep_ledger.web.intake import GroupCommit, Intake, Tokens
from lockstep_ledger.web.middleware import AccessLog
from lockstep_outcomes.prices.price import Pricing
from lockstep_prometheus import scrape_text
from lockstep_records.distribution import installed_version
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
    slo: dict[SloKey, tuple[float, float]], limits: queries.Limits
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


Samples = dict[Series, float]
MAX_CLASSES = 20
"""Classes of jobs whose objectives are counted apart; each costs 180 series."""
FAMILIES = metrics_of(Endpoint.LEDGER)


@dataclass(slots=True)
class Exposition:
    """Renders scrapes.

    A new series is served as 0 for a little more than the longest scrape interval: Prometheus sees
    no increase in one whose first sample is 1. The time begins at its creation, which the store
    holds, so a restart never takes a value back.
    """

    hold_seconds: float
    _stems: dict[Series, str] = field(default_factory=dict)

    def counted(
        self,
        rows: Mapping[Series, CounterRow],
        now_seconds: float,
        bases: Mapping[int, float] | None = None,
    ) -> Samples:
        """Values of the counters as they are served now: what they have grown by since a base."""
        newest, bases = now_seconds - self.hold_seconds, bases or {}
        return {
            series: row.value - bases.get(row.number, 0.0) if row.created <= newest else 0.0
            for series, row in rows.items()
        }

    def render(self, samples: Mapping[Series, float], *, is_openmetrics: bool = False) -> bytes:
        """The text of all families, in the order of the catalogue."""
        by_name: dict[str, list[Series]] = defaultdict(list)
        for series in samples:
            by_name[series[0]].append(series)
        lines: list[str] = []
        for metric in FAMILIES:
            lines.append(scrape_text.write_head(metric, is_openmetrics=is_openmetrics))
            if metric.kind is Kind.HISTOGRAM:
                lines += self._histogram(metric, by_name, samples)
            else:
                lines += [
                    f"{self._stem(metric, series)}{samples[series]!r}"
                    for series in by_name[metric.name]
                ]
        if is_openmetrics:
            lines.append("# EOF")
        return ("\n".join(lines) + "\n").encode()

    def _histogram(
        self, metric: Metric, by_name: Mapping[str, list[Series]], samples: Mapping[Series, float]
    ) -> Iterator[str]:
        """Lines of a histogram: for each combination its buckets, added up, then count and sum."""
        bucket, sum_name, count_name = metric.sample_names
        by_labels: dict[Labels, list[Series]] = defaultdict(list)
        for series in by_name[bucket]:
            by_labels[series[1][:-1]].append(series)
        for labels, row in by_labels.items():
            row.sort(key=lambda series: float(series[1][-1]))
            totals = accumulate(samples[series] for series in row)
            for series, total in zip(row, totals, strict=True):
                yield f"{self._stem(metric, series)}{total!r}"
            for name in (count_name, sum_name):
                yield f"{self._stem(metric, (name, labels))}{samples[name, labels]!r}"

    def _stem(self, metric: Metric, series: Series) -> str:
        """Name and labels of a sample, up to its value; written once."""
        stem = self._stems.get(series)
        if stem is None:
            name, values = series
            names: tuple[str, ...] = metric.label_names
            if len(values) > len(names):
                names = (*names, "le")
            stem = scrape_text.write_stem(name, dict(zip(names, values, strict=True)))
            stem = self._stems[series] = f"{stem} "
        return stem


def histogram(metric: Metric, counts: Iterable[int], total: float) -> Samples:
    """Samples of a histogram without labels, from its number of values in each bucket."""
    bucket, sum_name, count_name = metric.sample_names
    bounds = (*(repr(bound) for bound in metric.buckets), "+Inf")
    numbers = list(counts)
    samples: Samples = {
        (bucket, (bound,)): float(n) for bound, n in zip(bounds, numbers, strict=True)
    }
    return {**samples, (sum_name, ()): total, (count_name, ()): float(sum(numbers))}


def windows(
    slo: Mapping[SloKey, tuple[float, float]],
    jobs: Mapping[tuple[str, str], int],
    clusters: Iterable[str],
) -> Samples:
    """Samples of the counts per window and of jobs by status; what nobody counted is 0."""
    samples: Samples = {}
    counted = _few_classes(slo)
    classes = {(cluster, job_class) for cluster, job_class, *_ in counted}
    for key in product(sorted(classes | {(cluster, "") for cluster in clusters}), ledger.SLOS):
        (cluster, job_class), name = key
        for window in ledger.SLO_WINDOWS:
            counts = counted.get((cluster, job_class, name, window), (0.0, 0.0))
            for event, value in zip(ledger.SLO_EVENT.values, counts, strict=True):
                labels = (cluster, job_class, name, window, event)
                samples[ledger.SLO_EVENTS.name, labels] = float(value)
    for cluster in clusters:
        for status in ledger.JOB_STATUS.values:
            samples[ledger.JOBS.name, (cluster, status)] = float(jobs.get((cluster, status), 0))
    return samples


def _few_classes(slo: Mapping[SloKey, tuple[float, float]]) -> dict[SloKey, tuple[float, float]]:
    """The counts, where classes beyond the first by their names are one: users invent them."""
    names = sorted({job_class for _, job_class, *_ in slo if job_class})
    beyond = set(names[MAX_CLASSES:])
    few: dict[SloKey, tuple[float, float]] = {}
    for (cluster, job_class, name, window), (good, total) in slo.items():
        key = (cluster, "other" if job_class in beyond else job_class, name, window)
        good_before, total_before = few.get(key, (0.0, 0.0))
        few[key] = (good_before + good, total_before + total)
    return few


def promised(targets: Iterable[Target]) -> Samples:
    """Samples of the deadlines and tokens of running jobs."""
    samples: Samples = {}
    for target in targets:
        labels = (target.cluster, target.job_id)
        samples[ledger.JOB_DEADLINE.name, labels] = target.deadline_time
        samples[ledger.JOB_TOKENS.name, labels] = target.tokens
    return samples


def visible(samples: Samples, limits: queries.Limits) -> Samples:
    """The samples for a reader: of his clusters and projects, and of the ledger's own work.

    What names a cluster and no project is left out for a reader of some projects.
    """
    if not limits:
        return samples
    names_of = {name: metric.label_names for metric in FAMILIES for name in metric.sample_names}

    def is_visible(series: Series) -> bool:
        labels = dict(zip(names_of[series[0]], series[1], strict=False))
        return "cluster" not in labels or all(
            labels.get(label) in values for label, values in limits.items()
        )

    return {series: value for series, value in samples.items() if is_visible(series)}


def own_work(version: str, store: str, refusals: Mapping[str, int]) -> Samples:
    """Samples of the ledger's identity and refusals."""
    samples: Samples = {(ledger.LEDGER_INFO.name, (version, store)): 1.0}
    for refusal in ledger.REFUSALS:
        samples[ledger.REFUSED.name, (refusal,)] = float(refusals.get(refusal, 0))
    return samples


_READING_THREADS = 8
_SCRAPING_THREADS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one client may send, to which hosts, and how long a new series is served as 0."""

    max_body_bytes: int = 1 << 20
    requests_per_second: float = 100.0
    hold_seconds: float = 22.5
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """What the application serves from."""

    engine: Engine
    writer: SharedWriter
    group_commit: GroupCommit
    windows: WindowReader
    clusters: frozenset[str]
    pricing: Pricing = field(default_factory=Pricing)


class Application:
    """All endpoints over one store."""

    def __init__(self, parts: Parts, writers: Tokens, readers: Tokens, limits: Limits) -> None:
        self._parts = parts
        self._exposition = Exposition(limits.hold_seconds)
        self.intake = Intake(parts.group_commit, writers, limits.max_body_bytes)
        guard = Readers(readers, _READING_THREADS).guard
        # Scrapes have threads of their own: no question of people holds them up.
        guard_scrape = Readers(readers, _SCRAPING_THREADS).guard
        api = Api(parts.engine, parts.pricing)
        pages = Pages(parts.windows, api)
        routes = [
            Route("/api/events", self.intake.deliver, methods=["POST"]),
            Route("/api/jobs", guard(api.jobs)),
            Route("/api/jobs/{job_id:path}", guard(api.job)),
            Route("/api/costs", guard(api.costs)),
            Route("/api/statement", guard(api.statement)),
            Route("/api/dead-letters", guard(api.dead_letters)),
            Route("/api/openapi.json", guard(lambda _: JSONResponse(document()))),
            Route("/metrics", guard_scrape(self._metrics)),
            Route("/healthz", self._health),
            Route("/ready", self._ready),
            Route("/", guard(pages.jobs)),
            Route("/jobs/{job_id:path}", guard(pages.job)),
            Route("/costs", guard(pages.costs)),
        ]
        self.paths = tuple(route.path for route in routes)
        app = Starlette(routes=routes)
        app.router.redirect_slashes = False
        rate_limit = RateLimit(limits.requests_per_second)
        hosts = Hosts(limits.hosts, ", or start it with --allowed-host")
        self.asgi = AccessLog(
            app, rate_limit, hosts, lambda header: writers.digest(header) or readers.digest(header)
        )

    async def _health(self, _request: Request) -> Response:
        if self._parts.group_commit.is_alive:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the writer has stopped\n", 503)

    async def _ready(self, _request: Request) -> Response:
        if objection := self._parts.group_commit.objection:
            return PlainTextResponse(f"{objection}\n", 503)
        role = "leads" if self._parts.writer.leads else "leaves deliveries for the leader"
        return PlainTextResponse(f"ok: this ledger {role}\n")

    def _metrics(self, request: Request) -> Response:
        is_openmetrics = scrape_text.OPENMETRICS in request.headers.get("accept", "")
        samples = visible(self._samples(), request.state.limits)
        body = self._exposition.render(samples, is_openmetrics=is_openmetrics)
        content_type = scrape_text.OPENMETRICS_TYPE if is_openmetrics else scrape_text.TEXT_TYPE
        return Response(body, headers={"Content-Type": content_type})

    def _samples(self) -> Samples:
        parts = self._parts
        samples = self._exposition.counted(
            parts.writer.counters.snapshot(), time.time(), parts.writer.bases
        )
        samples |= own_work(installed_version(), parts.engine.dialect.name, self.intake.refusals)
        commits = parts.group_commit
        for name, value in (
            ("stored", commits.stored),
            ("duplicate", commits.duplicates),
            ("refused", commits.refused),
        ):
            samples[ledger.EVENTS.name, (name,)] = float(value)
        for status in ledger.HTTP_STATUS.values:
            samples[ledger.REQUESTS.name, (status,)] = float(self.asgi.answers[status])
        samples |= self.intake.feeds.samples()
        samples[ledger.LEADS.name, ()] = float(parts.writer.leads)
        samples[ledger.INBOX.name, ()] = float(parts.writer.inbox_size)
        samples |= histogram(ledger.COMMIT_DURATION, commits.commit_counts, commits.commit_seconds)
        counts, sequence = parts.windows.counts, parts.writer.sequence
        # Several ledgers on one store would be summed: what is the store's is the leader's to tell.
        if not parts.writer.leads or sequence is None:
            return samples
        samples[ledger.EVENTS_STORED.name, ()] = float(sequence)
        if counts is not None:
            clusters = parts.clusters | {name for name, *_ in (*counts.slo, *counts.jobs)}
            samples |= windows(counts.slo, counts.jobs, sorted(clusters))
            samples |= promised(counts.targets)
            samples |= {(ledger.JOB_ENDED.name, key): end for key, end in counts.ends.items()}
            samples[ledger.DEAD_LETTERS.name, ()] = float(counts.dead_letters)
            samples[ledger.JOBS_ASIDE.name, ()] = float(counts.jobs_aside)
            samples[ledger.REFRESHED.name, ()] = counts.time_seconds
        return samples
