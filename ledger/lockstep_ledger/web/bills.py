"""Costs and statements for programs, as JSON or CSV, and what the page of costs shows."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

import msgspec
from sqlalchemy import Engine
from starlette.requests import Request
from starlette.responses import Response

from lockstep_ledger.billing import render
from lockstep_ledger.billing.documents import Bills
from lockstep_ledger.money.costs import QUESTION, read_question
from lockstep_ledger.money.rate_card import RateCard
from lockstep_ledger.web.api import QueryError


@dataclass(frozen=True, slots=True)
class BillsApi:
    """The endpoints of bills over a store, by a rate card and in a time zone."""

    engine: Engine
    card: RateCard
    zone: tzinfo

    def costs(self, request: Request) -> Response:
        """GET /api/costs: GPU hours and money of a period, grouped."""
        given = read_parameters(request, (*QUESTION, "format"))
        with self.opened(request) as bills:
            question = read_question(given, bills.today)
            found = bills.costs(question)
        days = {"from": question.first, "to": question.last, "timezone": str(self.zone)}
        return _answer(
            given,
            {**days, **msgspec.structs.asdict(found)},
            *render.cost_rows(question.by, found.rows),
        )

    def statement(self, request: Request) -> Response:
        """GET /api/statement: every line of a month."""
        given = read_parameters(request, ("month", "format"))
        with self.opened(request) as bills:
            found = bills.statement(given.get("month") or f"{bills.today:%Y-%m}")
        rows = map(render.line_row, found["lines"])
        return _answer(given, render.statement_document(found), render.STATEMENT_COLUMNS, rows)

    @contextmanager
    def opened(self, request: Request) -> Iterator[Bills]:
        """The bills that a reader may see; a question that is wrong becomes a ``QueryError``."""
        try:
            with self.engine.connect() as connection:
                limits = request.state.limits
                yield Bills(connection, self.card, self.zone, time.time(), limits=limits)
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
    document: Mapping[str, Any],
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
) -> Response:
    if given.get("format") == "csv":
        return Response(render.to_csv(columns, rows), media_type="text/csv")
    return Response(msgspec.json.encode(document), media_type="application/json")
