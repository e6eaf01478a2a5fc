"""The application: every path, and what stands before it."""

import time
from dataclasses import dataclass, field

from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lockstep_catalogue import ledger
from lockstep_cli.small_server import Hosts, RateLimit
from lockstep_ledger import exposition
from lockstep_ledger.store.shared_writer import SharedWriter
from lockstep_ledger.store.windows import WindowReader
from lockstep_ledger.web.api import Api, BillsApi, Readers
from lockstep_ledger.web.grants import Tokens
from lockstep_ledger.web.intake import GroupCommit, Intake
from lockstep_ledger.web.middleware import AccessLog
from lockstep_ledger.web.openapi import document
from lockstep_ledger.web.pages import Pages
from lockstep_outcomes.prices.price import Pricing
from lockstep_prometheus.scrape_text import OPENMETRICS, OPENMETRICS_TYPE, TEXT_TYPE
from lockstep_records.distribution import installed_version

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
        self._exposition = exposition.Exposition(limits.hold_seconds)
        self.intake = Intake(parts.group_commit, writers, limits.max_body_bytes)
        guard = Readers(readers, _READING_THREADS).guard
        # Scrapes have threads of their own: no question of people holds them up.
        guard_scrape = Readers(readers, _SCRAPING_THREADS).guard
        api, bills = Api(parts.engine, parts.pricing), BillsApi(parts.engine, parts.pricing)
        pages = Pages(parts.engine, parts.windows, bills)
        routes = [
            Route("/api/events", self.intake.deliver, methods=["POST"]),
            Route("/api/jobs", guard(api.jobs)),
            Route("/api/jobs/{job_id:path}", guard(api.job)),
            Route("/api/costs", guard(bills.costs)),
            Route("/api/statement", guard(bills.statement)),
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
        is_openmetrics = OPENMETRICS in request.headers.get("accept", "")
        samples = exposition.visible(self._samples(), request.state.limits)
        body = self._exposition.render(samples, is_openmetrics=is_openmetrics)
        content_type = OPENMETRICS_TYPE if is_openmetrics else TEXT_TYPE
        return Response(body, headers={"Content-Type": content_type})

    def _samples(self) -> exposition.Samples:
        parts = self._parts
        samples = self._exposition.counted(
            parts.writer.counters.snapshot(), time.time(), parts.writer.bases
        )
        samples |= exposition.own_work(
            installed_version(), parts.engine.dialect.name, self.intake.refusals
        )
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
        samples |= exposition.histogram(
            ledger.COMMIT_DURATION, commits.commit_counts, commits.commit_seconds
        )
        counts, sequence = parts.windows.counts, parts.writer.sequence
        # Several ledgers on one store would be summed: what is the store's is the leader's to tell.
        if not parts.writer.leads or sequence is None:
            return samples
        samples[ledger.EVENTS_STORED.name, ()] = float(sequence)
        if counts is not None:
            clusters = parts.clusters | {name for name, *_ in (*counts.slo, *counts.jobs)}
            samples |= exposition.windows(counts.slo, counts.jobs, sorted(clusters))
            samples |= exposition.promised(counts.targets)
            samples |= {(ledger.JOB_ENDED.name, key): end for key, end in counts.ends.items()}
            samples[ledger.DEAD_LETTERS.name, ()] = float(counts.dead_letters)
            samples[ledger.JOBS_ASIDE.name, ()] = float(counts.jobs_aside)
            samples[ledger.REFRESHED.name, ()] = counts.time_seconds
        return samples
