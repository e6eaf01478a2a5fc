"""The OpenAPI document of the service, from the types of its answers and the tables of its rows."""

from collections.abc import Iterable
from datetime import date
from types import GenericAlias
from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa

from lockstep_ledger.billing.bills import Statement
from lockstep_ledger.billing.costs import CHOSEN, DIMENSIONS, MEASURES, Costs
from lockstep_ledger.merge.effective_time import Expectation
from lockstep_ledger.merge.record import Record
from lockstep_ledger.store.queries import FILTERS, INTERNAL_FIELDS, MAX_PAGE, OWN_COLUMNS
from lockstep_ledger.store.tables import dead_letters, jobs
from lockstep_ledger.web.api import CHOICES
from lockstep_records.distribution import installed_version

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


class CostsAnswer(Costs, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """Costs of the days of a period."""

    first: date
    last: date
    timezone: str


def _row(name: str, columns: Iterable[sa.Column[Any]]) -> Any:
    """The type of a row of a table; JSON has no type of Python."""
    fields = []
    for column in columns:
        is_json = isinstance(column.type, sa.JSON)
        kind: Any = dict[str, float] if is_json else column.type.python_type
        fields.append((str(column.name), kind | None if column.nullable else kind))
    return msgspec.defstruct(name, fields)


def _page(name: str, entries: str, row: Any) -> Any:
    """The type of a page of rows."""
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
    Delivery, Answer, Error, JobPage, Job, DeadLetterPage, CostsAnswer, Statement
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
    """An operation that a token of this scope permits, with the answers by status."""
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
_PAGING = [
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
    _query("by", f"with commas between, some of {', '.join(DIMENSIONS)}"),
    _query("sort", f"a dimension, or the largest first of {', '.join(MEASURES)}"),
    *(_query(name, f"only jobs of this {name}") for name in CHOSEN),
]
_JOB_ID = {"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}}
_READS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "/api/jobs": ("A page of jobs, the newest first.", "JobPage", [*_FILTERS, *_PAGING]),
    "/api/jobs/{job_id}": (
        "One job: record, attempts, timeline, verdicts and checkpoints.", "Job",
        [_JOB_ID, _query("cluster", "needed where two have this id")],
    ),
    "/api/dead-letters": (
        "What was refused and why, the newest first.", "DeadLetterPage", _PAGING[:2],
    ),
    "/api/costs": ("GPU hours and money of a period, grouped.", "CostsAnswer", _COST_QUERY),
    "/api/statement": ("Every line of a month, and what is planned.", "Statement", _MONTHLY),
    "/api/openapi.json": ("This document.", "", []),
}  # fmt: skip
"""Summary, type of the answer, and parameters of each path for readers."""
