"""The JSON that readers get, of jobs, dead letters and bills, and its OpenAPI document."""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from types import GenericAlias
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
import msgspec
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lockstep_catalogue.vocabulary import FAILURE_CLASSES, OUTCOMES
from lockstep_ledger import billing
from lockstep_ledger.merge.record import STATUSES, Expectation, Record
from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store import queries
from lockstep_ledger.store.queries import FILTERS, INTERNAL_FIELDS, MAX_PAGE, OWN_COLUMNS
from lockstep_ledger.store.tables import dead_letters, jobs
from lockstep_ledger.web.intake import Tokens
from lockstep_outcomes.prices.price import Pricing
from lockstep_records.distribution import installed_version

CHOICES = {"outcome": OUTCOMES, "failure_class": FAILURE_CLASSES, "status": STATUSES}
_PAGING = ("after", "limit", "since")
_DEFAULT_LIMIT = 50
_MAX_NUMBER = 2**62
_MAX_WAITING = 64


class QueryError(ValueError):
    """A query that cannot be answered; the text names parameter, value and remedy."""


Endpoint = Callable[[Request], Response]
_BUSY = {"error": "too many questions at once; ask again later"}


class Readers:
    """Lets readers in, some at a time, and answers what is wrong with a question."""

    def __init__(self, tokens: Tokens, max_threads: int) -> None:
        self._tokens, self._threads = tokens, anyio.CapacityLimiter(max_threads)

    def guard(self, answer: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint behind the token, in a thread; the grant is the state's ``limits``."""

        def answered(request: Request) -> Response:
            try:
                return answer(request)
            except QueryError as error:
                return JSONResponse({"error": str(error)}, 400)
            except SQLAlchemyError:
                return JSONResponse({"error": "the store does not answer; ask again later"}, 503)

        async def guarded(request: Request) -> Response:
            grant = self._tokens.grant(request.headers.get("authorization", ""))
            if grant is None:
                sentence = "the token is not a reader's; send it as bearer or as password"
                headers = {"WWW-Authenticate": 'Basic realm="lockstep ledger"'}
                return JSONResponse({"error": sentence}, 401, headers)
            if self._threads.statistics().tasks_waiting >= _MAX_WAITING:
                return JSONResponse(_BUSY, 503, {"Retry-After": "1"})
            request.state.limits = grant.limits
            return await anyio.to_thread.run_sync(answered, request, limiter=self._threads)

        return guarded


def read_filters(request: Request) -> dict[str, str]:
    """Filters of jobs in a query; QueryError for one that is none, or not of its vocabulary."""
    given = read_parameters(request, (*queries.FILTERS, *_PAGING))
    filters = {name: value for name, value in given.items() if name not in _PAGING}
    for name, value in filters.items():
        values = CHOICES.get(name)
        if values and value not in values:
            raise QueryError(f"{name}={value!r:.80} is unknown; use one of {', '.join(values)}")
        if "\0" in value:
            raise QueryError(f"{name}={value!r:.80} holds a NUL; leave it out")
    return filters


def read_number(request: Request, name: str, highest: int = _MAX_NUMBER) -> int | None:
    """A whole number from 1 on in a query, None where it is not given; or QueryError."""
    text = request.query_params.get(name, "")
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) < len(str(_MAX_NUMBER))
    if not is_number or not 1 <= int(text) <= highest:
        raise QueryError(f"{name}={text!r:.80} must be a whole number from 1 to {highest}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Api:
    """The endpoints below ``/api``."""

    engine: Engine
    pricing: Pricing

    def page(self, request: Request) -> dict[str, Any]:
        """The page of jobs that a query asks for."""
        filters = read_filters(request)
        limit = read_number(request, "limit", queries.MAX_PAGE) or _DEFAULT_LIMIT
        after, since = read_number(request, "after"), read_number(request, "since")
        with self.engine.connect() as connection:
            limits = request.state.limits
            return queries.list_jobs(
                connection, filters, limit, after, since, limits=limits, pricing=self.pricing
            )

    def find(self, request: Request) -> dict[str, Any] | None:
        """Everything of the job that the path names; QueryError where several clusters have one."""
        job_id, cluster = request.path_params["job_id"], request.query_params.get("cluster")
        if "\0" in f"{job_id}{cluster}":
            return None
        with self.engine.connect() as connection:
            rows = queries.find_job(connection, job_id, cluster, request.state.limits)
            if len(rows) > 1:
                names = ", ".join(sorted(row.cluster for row in rows))
                raise QueryError(f"job {job_id} is in the clusters {names}; add ?cluster=NAME")
            return queries.job_document(connection, rows[0], self.pricing) if rows else None

    def jobs(self, request: Request) -> Response:
        """GET /api/jobs: a page of jobs, the newest first."""
        return JSONResponse(self.page(request))

    def job(self, request: Request) -> Response:
        """GET /api/jobs/ID: one job with attempts, timeline, verdicts and checkpoints."""
        document = self.find(request)
        if document is None:
            return JSONResponse({"error": "no such job; /api/jobs lists them"}, 404)
        return JSONResponse(document)

    def dead_letters(self, request: Request) -> Response:
        """GET /api/dead-letters: what was refused, the newest first."""
        limit = read_number(request, "limit", queries.MAX_PAGE) or _DEFAULT_LIMIT
        with self.engine.connect() as connection:
            after, limits = read_number(request, "after"), request.state.limits
            page = letters.newest(connection, limit, after, limits)
            has_more = page and letters.newest(connection, 1, page[-1]["number"], limits)
        following = page[-1]["number"] if has_more else None
        return JSONResponse({"dead_letters": page, "next": following})

    def costs(self, request: Request) -> Response:
        """GET /api/costs: GPU hours and money of a period, grouped."""
        given = read_parameters(request, (*billing.QUESTION, "format"))
        with self.opened(request) as bills:
            question = billing.read_question(given, bills.today)
            found = bills.costs(question)
        days = {"from": question.first, "to": question.last, "timezone": str(self.pricing.zone)}
        document = {**days, **msgspec.structs.asdict(found)}
        return _answer(given, document, *billing.cost_rows(question.by, found.rows))

    def statement(self, request: Request) -> Response:
        """GET /api/statement: every line of a month."""
        given = read_parameters(request, ("month", "format"))
        with self.opened(request) as bills:
            found = bills.statement(given.get("month") or f"{bills.today:%Y-%m}")
        return _answer(given, found, billing.LINE_COLUMNS, (line.values() for line in found.lines))

    @contextmanager
    def opened(self, request: Request) -> Iterator[billing.Bills]:
        """The bills that a reader may see; a question that is wrong becomes a ``QueryError``."""
        try:
            with self.engine.connect() as connection:
                limits = request.state.limits
                yield billing.Bills(connection, self.pricing, time.time(), limits=limits)
        except ValueError as error:
            raise QueryError(str(error)) from error


def read_parameters(request: Request, names: Sequence[str]) -> dict[str, str]:
    """The parameters of a query that have a value; QueryError for an unknown one."""
    given = {name: value for name, value in request.query_params.items() if value}
    for name in given:
        if name not in names:
            raise QueryError(f"parameter {name!r:.80} is unknown; use one of {', '.join(names)}")
    if given.get("format", "csv") not in {"csv", "json"}:
        raise QueryError(f"format={given['format']!r:.80} must be csv or json")
    return given


def _answer(
    given: Mapping[str, str],
    document: object,
    columns: Sequence[str],
    rows: Iterable[Iterable[object]],
) -> Response:
    if given.get("format") == "csv":
        return Response(billing.to_csv(columns, rows), media_type="text/csv")
    return Response(msgspec.json.encode(document), media_type="application/json")


Objects = list[dict[str, Any]]
Ratio = float | None
Next = Annotated[int | None, msgspec.Meta(description="after of the next page; null on the last")]


class Delivery(msgspec.Struct):
    """Events; events.schema.json has the schema of one."""

    version: Literal[1]
    events: Annotated[Objects, msgspec.Meta(max_length=1000)]
    cluster: str = ""
    node: str = ""


class Rejected(msgspec.Struct):
    """An event that is refused; the reason says which field, its value, what would be right."""

    id: str | None
    refusal: str
    reason: str


class Answer(msgspec.Struct):
    """What became of the events of a delivery."""

    stored: int
    duplicates: int
    rejected: list[Rejected]


class Error(msgspec.Struct):
    """Why a request is not answered."""

    error: str


class CostsAnswer(billing.Costs, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """Costs of the days of a period."""

    first: date
    last: date
    timezone: str


def _row(name: str, columns: Iterable[sa.Column[Any]]) -> Any:
    fields = []
    for column in columns:
        is_json = isinstance(column.type, sa.JSON)
        kind: Any = dict[str, float] if is_json else column.type.python_type
        fields.append((str(column.name), kind | None if column.nullable else kind))
    return msgspec.defstruct(name, fields)


def _page(name: str, entries: str, row: Any) -> Any:
    return msgspec.defstruct(name, [(entries, GenericAlias(list, (row,))), ("next", Next)])


_JOB_ROW = _row("JobRow", (column for column in jobs.c if column.name not in OWN_COLUMNS))
JobPage = _page("JobPage", "jobs", _JOB_ROW)
DeadLetterPage = _page("DeadLetterPage", "dead_letters", _row("DeadLetter", dead_letters.c))
Job = msgspec.defstruct(
    "Job",
    [
        *((f.name, f.type) for f in msgspec.structs.fields(Record)
          if f.name not in INTERNAL_FIELDS),
        *((name, Objects) for name in ("nodes", "amendments", "runs_list", "attempts_list",
                                       "checkpoints_list", "verdicts", "timeline")),
        *((name, Ratio) for name in ("goodput_ratio", "ettr_ratio", "last_hour_ettr_ratio")),
        ("expectation", Expectation),
        ("runs", int),
        ("num_events", int),
    ],
)  # fmt: skip
_TYPES: tuple[Any, ...] = (
    Delivery, Answer, Error, JobPage, Job, DeadLetterPage, CostsAnswer, billing.Statement
)  # fmt: skip
_FOREIGN = {"403": "The host or the origin is not this ledger."}
_INTAKE_ERRORS = {
    "400": "No delivery of this version.",
    "401": "Not a writer's token.",
    **_FOREIGN,
    "413": "Too many bytes or events.",
    "415": "Another type than application/json, or compressed.",
    "429": "Too many requests; Retry-After says when.",
    "503": "The store does not take it now; send again.",
}
_READ_ERRORS = {
    "400": "A parameter is wrong.",
    "401": "Not a reader's token.",
    **_FOREIGN,
    "404": "There is none.",
    "503": "The store does not answer.",
}


def document() -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    references, components = msgspec.json.schema_components(
        _TYPES, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip((each.__name__ for each in _TYPES), references, strict=True))
    error = schemas["Error"]
    intake = _operation(
        "Delivers events, at least once; an id counts once.", "writer",
        {
            "200": ("Stored on the disk; each refused event is named.", schemas["Answer"]),
            "422": ("No event of the delivery could be stored.", schemas["Answer"]),
            **{status: (text, error) for status, text in _INTAKE_ERRORS.items()},
        },
    )  # fmt: skip
    intake["requestBody"] = {"required": True, "content": _content(schemas["Delivery"])}
    paths: dict[str, Any] = {"/api/events": {"post": intake}}
    for path, (summary, answer, parameters) in _READS.items():
        answers = {
            "200": ("The answer.", schemas.get(answer, {"type": "object"})),
            **{status: (text, error) for status, text in _READ_ERRORS.items()},
        }
        operation = _operation(summary, "reader", answers) | {"parameters": parameters}
        if _FORMAT in parameters:
            operation["responses"]["200"]["content"] |= {"text/csv": {"schema": {"type": "string"}}}
        paths[path] = {"get": operation}
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lockstep ledger",
            "version": installed_version(),
            "description": "What became of each job.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"writer": bearer, "reader": bearer},
            "schemas": components,
        },
    }


def _operation(
    summary: str, scope: str, answers: dict[str, tuple[str, dict[str, Any]]]
) -> dict[str, Any]:
    return {
        "summary": summary,
        "security": [{scope: []}],
        "responses": {
            status: {"description": description, "content": _content(schema)}
            for status, (description, schema) in answers.items()
        },
    }


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _query(name: str, meaning: str, choices: tuple[str, ...] | type = str) -> dict[str, Any]:
    schema = msgspec.json.schema(choices if isinstance(choices, type) else Literal[choices])
    return {"name": name, "in": "query", "description": meaning, "schema": schema}


_FILTERS = [_query(name, f"only jobs of this {name}", CHOICES.get(name, str)) for name in FILTERS]
_PAGE_QUERY = [
    _query("limit", f"number of entries, 1 to {MAX_PAGE}", int),
    _query("after", "next of the page before", int),
    _query("since", "only jobs with an event at this time or later, seconds since 1970", int),
]
_FORMAT = _query("format", "csv for a table", ("json", "csv"))
_MONTHLY = [_query("month", "such as 2026-10; the one that runs when left out"), _FORMAT]
_COST_QUERY = [
    *_MONTHLY,
    _query("from", "first day, such as 2026-10-05"),
    _query("to", "last day, which counts too"),
    _query("by", f"with commas between, some of {', '.join(billing.DIMENSIONS)}"),
    _query("sort", f"a dimension, or the largest first of {', '.join(billing.MEASURES)}"),
    *(_query(name, f"only jobs of this {name}") for name in billing.CHOSEN),
]
_JOB_ID = {"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}}
_READS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "/api/jobs": ("A page of jobs, the newest first.", "JobPage", [*_FILTERS, *_PAGE_QUERY]),
    "/api/jobs/{job_id}": ("One job: record, attempts, timeline, verdicts and checkpoints.", "Job",
                           [_JOB_ID, _query("cluster", "needed where two have this id")]),
    "/api/dead-letters": ("What was refused and why, the newest first.", "DeadLetterPage",
                          _PAGE_QUERY[:2]),
    "/api/costs": ("GPU hours and money of a period, grouped.", "CostsAnswer", _COST_QUERY),
    "/api/statement": ("Every line of a month, and what is planned.", "Statement", _MONTHLY),
    "/api/openapi.json": ("This document.", "", []),
}  # fmt: skip
"""Summary, type of the answer, and parameters of each path for readers."""
