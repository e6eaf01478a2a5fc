"""The JSON that readers get: jobs page by page, one job, dead letters, costs, statements."""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lockstep_catalogue.vocabulary import FAILURE_CLASSES, OUTCOMES
from lockstep_ledger.billing.bills import Bills
from lockstep_ledger.billing.costs import LINE_COLUMNS, QUESTION, cost_rows, read_question, to_csv
from lockstep_ledger.merge.record import STATUSES
from lockstep_ledger.store import dead_letters as letters
from lockstep_ledger.store import queries
from lockstep_ledger.web.grants import Tokens
from lockstep_outcomes.prices.price import Pricing

CHOICES = {"outcome": OUTCOMES, "failure_class": FAILURE_CLASSES, "status": STATUSES}
_PAGING = ("after", "limit", "since")
_DEFAULT_LIMIT = 50
_MAX_NUMBER = 2**62
_MAX_WAITING = 64


class QueryError(ValueError):
    """A query that cannot be answered; the text names parameter, value and remedy."""


Answer = Callable[[Request], Response]
_BUSY = {"error": "too many questions at once; ask again later"}


class Readers:
    """Lets readers in and turns what is wrong with a question into an answer.

    Args:
        tokens: of readers.
        max_threads: number of questions that are answered at once; some more may wait.
    """

    def __init__(self, tokens: Tokens, max_threads: int) -> None:
        self._tokens, self._threads = tokens, anyio.CapacityLimiter(max_threads)

    def guard(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
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
    """Filters of jobs in a query.

    Raises:
        QueryError: a parameter is none, or a value is not of its vocabulary.
    """
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
    """A whole number from 1 on in a query; None where it is not given.

    Raises:
        QueryError: it is none.
    """
    text = request.query_params.get(name, "")
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) < len(str(_MAX_NUMBER))
    if not is_number or not 1 <= int(text) <= highest:
        raise QueryError(f"{name}={text!r:.80} must be a whole number from 1 to {highest}")
    return int(text)


def job_page(engine: Engine, pricing: Pricing, request: Request) -> dict[str, Any]:
    """The page of jobs that a query asks for."""
    filters = read_filters(request)
    limit = read_number(request, "limit", queries.MAX_PAGE) or _DEFAULT_LIMIT
    after, since = read_number(request, "after"), read_number(request, "since")
    with engine.connect() as connection:
        limits = request.state.limits
        return queries.list_jobs(
            connection, filters, limit, after, since, limits=limits, pricing=pricing
        )


def one_job(engine: Engine, pricing: Pricing, request: Request) -> dict[str, Any] | None:
    """Everything of the job that the path names; None where there is none.

    Raises:
        QueryError: several clusters have a job of this id, and the query names none.
    """
    job_id, cluster = request.path_params["job_id"], request.query_params.get("cluster")
    if "\0" in f"{job_id}{cluster}":
        return None
    with engine.connect() as connection:
        rows = queries.find_job(connection, job_id, cluster, request.state.limits)
        if len(rows) > 1:
            names = ", ".join(sorted(row.cluster for row in rows))
            raise QueryError(f"job {job_id} is in the clusters {names}; add ?cluster=NAME")
        return queries.job_document(connection, rows[0], pricing) if rows else None


@dataclass(frozen=True, slots=True)
class Api:
    """The endpoints below ``/api``."""

    engine: Engine
    pricing: Pricing

    def jobs(self, request: Request) -> Response:
        """GET /api/jobs: a page of jobs, the newest first."""
        return JSONResponse(job_page(self.engine, self.pricing, request))

    def job(self, request: Request) -> Response:
        """GET /api/jobs/ID: one job with attempts, timeline, verdicts and checkpoints."""
        document = one_job(self.engine, self.pricing, request)
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


@dataclass(frozen=True, slots=True)
class BillsApi:
    """The endpoints of bills over a store."""

    engine: Engine
    pricing: Pricing

    def costs(self, request: Request) -> Response:
        """GET /api/costs: GPU hours and money of a period, grouped."""
        given = read_parameters(request, (*QUESTION, "format"))
        with self.opened(request) as bills:
            question = read_question(given, bills.today)
            found = bills.costs(question)
        days = {"from": question.first, "to": question.last, "timezone": str(self.pricing.zone)}
        document = {**days, **msgspec.structs.asdict(found)}
        return _answer(given, document, *cost_rows(question.by, found.rows))

    def statement(self, request: Request) -> Response:
        """GET /api/statement: every line of a month."""
        given = read_parameters(request, ("month", "format"))
        with self.opened(request) as bills:
            found = bills.statement(given.get("month") or f"{bills.today:%Y-%m}")
        return _answer(given, found, LINE_COLUMNS, (line.values() for line in found.lines))

    @contextmanager
    def opened(self, request: Request) -> Iterator[Bills]:
        """The bills that a reader may see; a question that is wrong becomes a ``QueryError``."""
        try:
            with self.engine.connect() as connection:
                limits = request.state.limits
                yield Bills(connection, self.pricing, time.time(), limits=limits)
        except ValueError as error:
            raise QueryError(str(error)) from error


def read_parameters(request: Request, names: Sequence[str]) -> dict[str, str]:
    """The parameters of a query that have a value.

    Raises:
        QueryError: one is unknown.
    """
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
        return Response(to_csv(columns, rows), media_type="text/csv")
    return Response(msgspec.json.encode(document), media_type="application/json")
