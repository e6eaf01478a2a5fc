"""Costs and statements for programs, as JSON or CSV, and what the page of costs shows."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from sqlalchemy import Engine
from starlette.requests import Request
from starlette.responses import Response

from lockstep_ledger.billing.bills import Bills
from lockstep_ledger.billing.costs import LINE_COLUMNS, QUESTION, cost_rows, read_question, to_csv
from lockstep_ledger.web.api import QueryError
from lockstep_outcomes.prices.price import Pricing


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
