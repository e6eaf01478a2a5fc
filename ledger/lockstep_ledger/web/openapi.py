"""The OpenAPI document of the service; events.schema.json has the schema of an event."""

from dataclasses import fields
from typing import Any

from lockstep_ledger.billing.costs import CHOSEN, DIMENSIONS, MEASURES
from lockstep_ledger.merge.effective_time import Expectation
from lockstep_ledger.store.queries import FILTERS, MAX_PAGE, OWN_COLUMNS
from lockstep_ledger.store.tables import jobs
from lockstep_ledger.web.api import CHOICES
from lockstep_records.distribution import installed_version


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """An object that has all of these properties."""
    return {"type": "object", "required": [*properties], "properties": properties}


def _list_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


_NUMBER, _TEXT, _INTEGER = {"type": "number"}, {"type": "string"}, {"type": "integer"}
_OBJECTS = _list_of({"type": "object"})
_TYPES = {"INTEGER": {"type": "integer"}, "BIGINT": {"type": "integer"}, "DOUBLE": _NUMBER}
_REFUSED = _object(
    id={"type": ["string", "null"]},
    refusal=_TEXT,
    reason={"type": "string", "description": "which field, its value, what would be right"},
)
_EVENTS = {**_OBJECTS, "maxItems": 1000}
_DELIVERY = {
    **_object(version={"const": 1}, cluster=_TEXT, node=_TEXT, events=_EVENTS),
    "required": ["version", "events"],
}
_ANSWER = _object(stored=_INTEGER, duplicates=_INTEGER, rejected=_list_of(_REFUSED))
_ERROR = _object(error=_TEXT)
_JOB_ID = {"name": "job_id", "in": "path", "required": True, "schema": _TEXT}
_FOREIGN = "The host or the origin is not this ledger."
_NEXT = {"type": ["integer", "null"], "description": "after of the next page; null on the last"}
_LETTER = {"type": "object", "required": ["refusal", "reason", "received", "body"]}
_LETTERS = _object(dead_letters=_list_of(_LETTER), next=_NEXT)


def document() -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    page = _object(jobs=_list_of(job_row()), next=_NEXT)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lockstep ledger",
            "version": installed_version(),
            "description": "What became of each job.",
        },
        "paths": {
            "/api/events": {"post": _intake()},
            "/api/jobs": {"get": _get("A page of jobs, the newest first.", page, _parameters())},
            "/api/jobs/{job_id}": {
                "get": _get(
                    "One job: record, attempts, timeline, verdicts and checkpoints.",
                    _job(),
                    [_JOB_ID, _query("cluster", "needed where two have this id")],
                )
            },
            "/api/dead-letters": {
                "get": _get(
                    "What was refused and why, the newest first.", _LETTERS, _parameters()[-3:-1]
                )
            },
            "/api/costs": {
                "get": _get("GPU hours and money of a period, grouped.", _COSTS, _COST_QUERY)
            },
            "/api/statement": {
                "get": _get("Every line of a month, and what is planned.", _STATEMENT, _MONTHLY)
            },
            "/api/openapi.json": {"get": _get("This document.", {"type": "object"}, [])},
        },
        "components": {
            "securitySchemes": {
                "writer": {"type": "http", "scheme": "bearer"},
                "reader": {"type": "http", "scheme": "bearer"},
            }
        },
    }


def job_row() -> dict[str, Any]:
    """Schema of a job in a list."""
    columns = [column for column in jobs.c if column.name not in OWN_COLUMNS]
    properties = {}
    for column in columns:
        kind: dict[str, Any] = dict(_TYPES.get(str(column.type).partition("(")[0], _TEXT))
        if column.nullable:
            kind["type"] = [kind["type"], "null"]
        properties[column.name] = kind
    return _object(**properties)


def _intake() -> dict[str, Any]:
    responses = {
        "200": _content(
            "Stored on the disk; each refused event is named with its reason.", _ANSWER
        ),
        "422": _content("No event of the delivery could be stored.", _ANSWER),
        "400": _content("No delivery of this version."),
        "401": _content("Not a writer's token."),
        "403": _content(_FOREIGN),
        "413": _content("Too many bytes or events."),
        "415": _content("Another type than application/json, or compressed."),
        "429": _content("Too many requests; Retry-After says when."),
        "503": _content("The store does not take it now; send again."),
    }
    return {
        "summary": "Delivers events, at least once; an id counts once.",
        "security": [{"writer": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _DELIVERY}}},
        "responses": responses,
    }


def _get(summary: str, schema: dict[str, Any], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    responses = {
        "200": _content("The answer.", schema),
        "400": _content("A parameter is wrong."),
        "401": _content("Not a reader's token."),
        "403": _content(_FOREIGN),
        "404": _content("There is none."),
        "503": _content("The store does not answer."),
    }
    return {
        "summary": summary,
        "security": [{"reader": []}],
        "parameters": parameters,
        "responses": responses,
    }


def _content(description: str, schema: dict[str, Any] = _ERROR) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _parameters() -> list[dict[str, Any]]:
    filters = [_query(name, f"only jobs of this {name}", CHOICES.get(name)) for name in FILTERS]
    return [
        *filters,
        _query("limit", f"number of entries, 1 to {MAX_PAGE}"),
        _query("after", "next of the page before"),
        _query("since", "only jobs with an event at this time or later, seconds since 1970"),
    ]


def _query(name: str, meaning: str, choices: tuple[str, ...] | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if choices:
        schema["enum"] = list(choices)
    return {"name": name, "in": "query", "description": meaning, "schema": schema}


def _job() -> dict[str, Any]:
    lists = ("nodes", "attempts_list", "checkpoints_list", "verdicts", "timeline")
    ratios = ("goodput_ratio", "ettr_ratio", "last_hour_ettr_ratio")
    maybe = {"type": ["number", "null"]}
    expected = dict.fromkeys((field.name for field in fields(Expectation)), maybe)
    properties = {
        **dict.fromkeys(lists, _OBJECTS),
        **dict.fromkeys(ratios, maybe),
        "expectation": {"type": "object", "properties": expected},
    }
    required = ["cluster", "job_id", "status", "outcome", *lists]
    return {"type": "object", "required": required, "properties": properties}


_MONTHLY = [
    _query("month", "such as 2026-10; the one that runs when left out"),
    _query("format", "csv for a table", ("json", "csv")),
]
_COST_QUERY = [
    *_MONTHLY,
    _query("from", "first day, such as 2026-10-05"),
    _query("to", "last day, which counts too"),
    _query("by", f"with commas between, some of {', '.join(DIMENSIONS)}"),
    _query("sort", f"a dimension, or the largest first of {', '.join(MEASURES)}"),
    *(_query(name, f"only jobs of this {name}") for name in CHOSEN),
]
_COSTS = _object(
    **dict.fromkeys(("rows", "totals"), _OBJECTS),
    **dict.fromkeys(("from", "to", "timezone"), _TEXT),
)
# Amounts in it are decimal texts.
_STATEMENT = _object(
    **dict.fromkeys(("lines", "totals", "budgets", "capacity", "differences"), _OBJECTS),
    checked=_list_of(_TEXT),
    month=_TEXT,
    timezone=_TEXT,
    closed={"type": ["object", "null"]},
)
