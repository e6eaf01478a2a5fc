"""Queries of people and programs: pages of jobs, and everything of one job."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, func, select

from lockstep_ledger.merge.derive import ratios
from lockstep_ledger.merge.record import (
    Record,
    expectation,
    interruptions_of,
    last_hour_ettr,
    read_at,
    record_of_json,
)
from lockstep_ledger.store.job_states import ID_PREFIX, decode_span
from lockstep_ledger.store.tables import aliases, amendments, events, jobs, spans
from lockstep_outcomes.prices.price import Pricing

MAX_PAGE = 500
MAX_TIMELINE = 2000
_MAX_CHARACTERS = 8 << 20
_SAMPLED_NODES = 16
_REPORTS_SECONDS = 7200.0
FILTERS = ("cluster", "project", "queue", "job_class", "user", "status", "outcome",
           "failure_class", "cause", "cause_node")  # fmt: skip
"""Columns by which jobs are chosen, each by one value."""
Limits = Mapping[str, frozenset[str]]
"""The only values that a reader may see, by column of a job; everything where empty."""
OWN_COLUMNS = frozenset({"state", "facts", "counted", "settle_at", "run_begin"})
"""Of a job's row, for the writer alone."""
_PUBLIC_COLUMNS = tuple(c for c in jobs.c if c.name not in OWN_COLUMNS)
_END_COLUMNS = ("outcome", "failure_class", "cause", "reason", "cause_ranks", "exit_code")
INTERNAL_FIELDS = ("number", "runs", "run_number")
"""Of a record, for the ledger alone."""


def list_jobs(
    connection: Connection,
    filters: Mapping[str, str],
    limit: int = 50,
    after: int | None = None,
    since_seconds: float | None = None,
    *,
    limits: Limits | None = None,
    pricing: Pricing | None = None,
) -> dict[str, Any]:
    """A page of ``jobs``, the newest first; ``next`` is what ``after`` is for the next one, if any.

    ``filters`` are values by column of ``FILTERS``; ``since_seconds`` is the least wall clock of a
    job's newest event; by ``pricing`` what runs counts up to now, else up to its newest event.
    """
    query = (
        within(select(*_PUBLIC_COLUMNS, jobs.c.state), limits)
        .order_by(jobs.c.number.desc())
        .limit(min(limit, MAX_PAGE) + 1)
    )
    for name, value in filters.items():
        query = query.where(jobs.c[name] == value)
    if after is not None:
        query = query.where(jobs.c.number < after)
    if since_seconds is not None:
        query = query.where(jobs.c.updated >= since_seconds)
    found = connection.execute(query).mappings().all()
    rows = [_listed(row, pricing) for row in found[:limit]]
    return {"jobs": rows, "next": rows[-1]["number"] if len(found) > limit else None}


def _listed(row: Mapping[Any, Any], pricing: Pricing | None) -> dict[str, Any]:
    values = dict(row)
    state = values.pop("state")
    if pricing is None or row["status"] == "finished":
        return values
    record = record_now(state, pricing)
    return values | {"gpu_seconds": record.gpu_seconds, "costs": record.costs}


def first_rows(rows: Iterable[Mapping[Any, Any]]) -> Iterator[Mapping[Any, Any]]:
    """As many of the first rows as have bodies of 8 MiB together, but one at least."""
    characters = 0
    for number, row in enumerate(rows):
        characters += len(row["body"])
        if number and characters > _MAX_CHARACTERS:
            return
        yield row


def within(query: Select[Any], limits: Limits | None) -> Select[Any]:
    """The query of jobs, for those that a reader may see."""
    for name, values in (limits or {}).items():
        query = query.where(jobs.c[name].in_(sorted(values)))
    return query


def find_job(
    connection: Connection, job_id: str, cluster: str | None, limits: Limits | None = None
) -> list[Any]:
    """Rows of the jobs of this id, one a cluster; where none has it, of that with this alias."""
    names = (job_id, f"{ID_PREFIX}{job_id}")
    joined = select(aliases.c.job).where(aliases.c.alias.in_(names))
    is_meant = (jobs.c.job_id == job_id) | jobs.c.number.in_(joined)
    query = within(select(jobs), limits).where(is_meant).limit(MAX_PAGE)
    if cluster is not None:
        query = query.where(jobs.c.cluster == cluster)
    rows = connection.execute(query).all()
    # An alias is what somebody claims: it never stands beside a job of that id.
    named = {row.cluster for row in rows if row.job_id == job_id}
    return [row for row in rows if row.job_id == job_id or row.cluster not in named]


def record_now(state: str, pricing: Pricing | None) -> Record:
    """The record of a job's row, in which what runs counts up to now where there are prices."""
    record = record_of_json(state)
    if pricing is not None:
        read_at(record, time.time(), pricing)
    return record


def job_document(
    connection: Connection, row: Any, pricing: Pricing | None = None
) -> dict[str, Any]:
    """Everything of a job: its record, attempts, timeline, checkpoints and verdicts."""
    state = record_now(row.state, pricing)
    record = msgspec.to_builtins(state)
    timeline, nodes = _timeline(connection, row.number), _nodes(connection, row.number)
    reports = _reports(connection, row.number, [each["node"] for each in nodes], row.updated)
    query = select(func.count()).select_from(events).where(events.c.job == row.number)
    return {
        **{name: value for name, value in record.items() if name not in INTERNAL_FIELDS},
        "rate_card": row.rate_card,
        **ratios(record["goodput"]),
        "last_hour_ettr_ratio": last_hour_ettr(reports),
        "expectation": asdict(expectation(interruptions_of(state))),
        "runs": record["run_number"],
        "runs_list": record["runs"],
        "nodes": nodes,
        "amendments": _amendments(connection, row.number),
        "attempts_list": _attempts(timeline),
        "checkpoints_list": [
            {"time": event["time"], "attempt": event["attempt"], **event["fields"]}
            for event in timeline
            if event["kind"] == "checkpoint_durable"
        ],
        "verdicts": [e for e in timeline if e["kind"] in {"verdict", "hang", "node_event"}],
        "timeline": timeline,
        "num_events": connection.execute(query).scalar(),
    }


def _reports(
    connection: Connection, number: int, nodes: Sequence[str], newest: float
) -> list[dict[str, Any]]:
    """Goodput of the last two hours by some of the nodes: their shares are those of all."""
    sampled = nodes[:: len(nodes) // _SAMPLED_NODES + 1]
    own = (events.c.job == number, events.c.node.in_(sampled), events.c.kind == "goodput")
    query = select(events).where(*own, events.c.time >= newest - _REPORTS_SECONDS)
    return [
        {"kind": row.kind, "node": row.node, "attempt": row.attempt, "time": row.time}
        | json.loads(row.body)
        for row in connection.execute(query.order_by(events.c.time))
    ]


def _nodes(connection: Connection, number: int) -> list[dict[str, Any]]:
    query = select(spans).where(spans.c.job == number).order_by(spans.c.node, spans.c.number)
    newest = {row.node: decode_span(row.state) for row in connection.execute(query)}
    names = ("outcome", "failure_class", "cause", "reason", "rank")
    return [
        {
            "node": node,
            "start": span.begin if span.has_start else None,
            "end": span.end,
            "gpus": span.stated[-1][1] if span.stated else span.num_ranks,
            **{name: getattr(span.ending, name, None) for name in names},
        }
        for node, span in newest.items()
        if node.isprintable()
    ]


def _amendments(connection: Connection, number: int) -> list[dict[str, Any]]:
    query = select(amendments).where(amendments.c.job == number)
    query = query.order_by(amendments.c.number.desc()).limit(MAX_TIMELINE)
    names = ("time", "field", "before", "after", "why", "event_id")
    return [{name: row[name] for name in names} for row in connection.execute(query).mappings()]


def _timeline(connection: Connection, number: int) -> list[dict[str, Any]]:
    query: Select[Any] = (
        select(events)
        .where(events.c.job == number)
        .order_by(events.c.sequence.desc())
        .limit(MAX_TIMELINE)
    )
    names = ("id", "time", "kind", "node", "attempt")
    timeline = [
        {name: row[name] for name in names} | json.loads(row["body"])
        for row in first_rows(connection.execute(query).mappings())
    ]
    timeline.reverse()  # events of one moment stay in the order in which they were stored
    return sorted(timeline, key=lambda event: event["time"])


def _attempts(timeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry an attempt: its first start, its last end, and the end that came first."""
    attempts: dict[tuple[int, int], dict[str, Any]] = {}
    runs_of_node: dict[str, int] = {}
    for event in timeline:
        node, kind = event["node"], event["kind"]
        if kind == "job_started":
            runs_of_node[node] = runs_of_node.get(node, 0) + 1
        if kind not in {"attempt_started", "attempt_ended"}:
            continue
        key = (max(runs_of_node.get(node, 1), 1), event["attempt"])
        entry = attempts.setdefault(
            key,
            {"run": key[0], "attempt": key[1], "start": None, "end": None, "nodes": []}
            | dict.fromkeys(_END_COLUMNS),
        )
        if node not in entry["nodes"]:
            entry["nodes"].append(node)
        if kind == "attempt_started":
            entry["start"] = event["time"] if entry["start"] is None else entry["start"]
            continue
        entry["end"] = event["time"]
        fields = event["fields"]
        if entry["outcome"] in {None, "succeeded"}:
            entry.update({name: fields.get(name) for name in _END_COLUMNS})
    return [attempts[key] for key in sorted(attempts)]
