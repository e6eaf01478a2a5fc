"""Counts everything anew by plain SQL over the events, to hold the store against.

``recount_sql`` is written from docs/ledger.md and shares nothing with the code that merges events.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, select, text

from lockstep_catalogue.ledger import AMENDED, COUNTED, GROUP, SLO_WINDOWS
from lockstep_catalogue.limits import PREEMPTION_GRACE_SECONDS, QUEUE_WAIT_TARGETS
from lockstep_catalogue.metric import Kind
from lockstep_ledger.store.tables import counters, slo_events, slo_rollups
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import Evidence, NodeEvent
from lockstep_outcomes.progress.ettr import PROGRESS_STATES

_NAMED_CLASSES = frozenset({"infra", "user"})
_HOUR_SECONDS = 3600
_OTHER = "other"
_FAMILIES = frozenset(m.name for m in COUNTED if m.kind is Kind.COUNTER) - {AMENDED.name}
_BEGINS_ANEW = """(o.position_before >= w.first OR o.attempt > w.first_attempt OR (
    w.over_at <= o.began AND (o.attempt < w.first_attempt OR (o.has_start = 1
    AND o.position - w.first >= coalesce(nullif(j.num_nodes, 0), 1)))))"""
_REPORTS = "CREATE TEMP TABLE rc_reports AS SELECT job, events.id, key AS state, "
_DIALECTS = {
    "sqlite": {
        r"TEXT\((\w+)\)": r"CASE WHEN json_type(fields, '$.\1') = 'text' AND length(json_extract("
        r"fields, '$.\1')) <= 200 THEN nullif(json_extract(fields, '$.\1'), '') END",
        r"NUMBER\((\w+)\)": r"CASE WHEN json_type(fields, '$.\1') IN ('integer', 'real')"
        r" THEN CAST(json_extract(fields, '$.\1') AS REAL) END",
        r"FLAG\((\w+)\)": r"CASE WHEN json_type(fields, '$.\1') = 'true' THEN 1 ELSE 0 END",
        r"\bSTORED\b": "(SELECT *, json_extract(body, '$.fields') AS fields FROM events)",
        r"\bGREATEST\(": "max(",
        r"\bLEAST\(": "min(",
        r"\bBYTES\b": "",
        r"\bREPORTS\b": _REPORTS + "CAST(value AS REAL) AS seconds FROM events,"
        " json_each(body, '$.fields.rank_seconds')"
        " WHERE kind = 'goodput' AND type IN ('integer', 'real')",
    },
    "postgresql": {
        r"TEXT\((\w+)\)": r"CASE WHEN jsonb_typeof(fields -> '\1') = 'string' AND length("
        r"fields ->> '\1') <= 200 THEN nullif(fields ->> '\1', '') END",
        r"NUMBER\((\w+)\)": r"CASE WHEN jsonb_typeof(fields -> '\1') = 'number'"
        r" THEN CAST(fields ->> '\1' AS double precision) END",
        r"FLAG\((\w+)\)": r"CASE WHEN fields -> '\1' = CAST('true' AS jsonb) THEN 1 ELSE 0 END",
        r"\bSTORED\b": "(SELECT *, CAST(body AS jsonb) -> 'fields' AS fields FROM events) AS e",
        r"\bBYTES\b": 'COLLATE "C"',
        r"\bREPORTS\b": _REPORTS + "CAST(value AS double precision) AS seconds FROM events,"
        " jsonb_each(CAST(body AS jsonb) #> '{fields,rank_seconds}')"
        " WHERE kind = 'goodput' AND jsonb_typeof(value) = 'number'",
    },
}
"""What the two databases spell differently."""


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long the ledger waited, as its options say."""

    node_seconds: float = 600.0
    requeue_seconds: float = 86_400.0
    silent_seconds: float = 21_600.0


class Difference(NamedTuple):
    """Something of which the store and the recount do not say the same."""

    what: str
    of: str
    stored: Any
    recounted: Any

    @property
    def is_equal(self) -> bool:
        """Whether it is none."""
        if isinstance(self.stored, float) and isinstance(self.recounted, int | float):
            return math.isclose(self.stored, self.recounted, rel_tol=1e-6, abs_tol=1e-3)
        return bool(self.stored == self.recounted)


def differences(
    engine: Engine, waits: Waits | None = None, now_seconds: float | None = None
) -> list[Difference]:
    """Where jobs, counters and windows, to now or to the newest row, differ from the events."""
    level = "REPEATABLE READ" if engine.dialect.name == "postgresql" else "SERIALIZABLE"
    with engine.execution_options(isolation_level=level).connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")  # of one moment, beside a ledger that runs
        _count(connection, waits or Waits())
        groups = _Groups(connection)
        compared = (*_compare_jobs(connection), *_compare_counters(connection, groups),
                    *_compare_windows(connection, groups, now_seconds))  # fmt: skip
        connection.rollback()
    return [difference for difference in compared if not difference.is_equal]


def _count(connection: Connection, waits: Waits) -> None:
    """Runs the files in order; their tables are gone with the transaction."""
    targets = "".join(
        f"WHEN gpus <= {most} THEN {seconds} " if math.isfinite(most) else f"ELSE {seconds} END"
        for most, seconds in QUEUE_WAIT_TARGETS
    )
    values = {
        "node": waits.node_seconds, "requeue": waits.requeue_seconds,
        "silent": waits.silent_seconds, "grace": PREEMPTION_GRACE_SECONDS,
        "wait_target": f"CASE {targets}",
        "progress": ", ".join(f"'{state}'" for state in sorted(PROGRESS_STATES)),
    }  # fmt: skip
    folder = files("lockstep_ledger.store") / "recount_sql"
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        script = re.sub(r"--.*", "", file.read_text(encoding="utf-8")).format(**values)
        script = script.replace("BEGINS_ANEW", _BEGINS_ANEW)
        for pattern, spelling in _DIALECTS[connection.dialect.name].items():
            script = re.sub(pattern, spelling, script)
        for statement in filter(str.strip, script.split(";")):
            connection.exec_driver_sql(statement)
        if file.name.startswith("4"):
            _judge(connection)


def _judge(connection: Connection) -> None:
    """Asks the outcome table about the incidents before ends that name no class."""
    query = text(
        "SELECT q.job, q.run, q.side, e.node, e.time, e.body FROM rc_questions AS q"
        " JOIN rc_words AS w ON w.job = q.job AND w.run = q.run AND w.time >= q.since"
        " JOIN events AS e ON e.id = w.id WHERE w.kind = 'node_event'"
        " ORDER BY q.job, q.run, q.side, w.place"
    )
    incidents: dict[tuple[int, int, str], list[NodeEvent]] = defaultdict(list)
    for job, run, side, node, time, body in connection.execute(query):
        fields = json.loads(body)["fields"]
        event = NodeEvent(
            sign=str(fields.get("sign") or ""), node=node or None, time=time,
            ranks=tuple(fields.get("ranks") or ()), detail=str(fields.get("detail") or "")[:300],
        )  # fmt: skip
        incidents[job, run, side].append(event)
    for (job, run, side), found in incidents.items():
        judged = classify(Evidence(node_events=tuple(found)))
        if judged.outcome == "failed" and judged.failure_class in _NAMED_CLASSES:
            insert = text("INSERT INTO rc_judged VALUES (:job, :run, :side, :named)")
            named = judged.failure_class
            connection.execute(insert, {"job": job, "run": run, "side": side, "named": named})


class _Groups:
    """Names by which jobs are counted: those of the counters; any other is ``other``."""

    def __init__(self, connection: Connection) -> None:
        labels = connection.execute(select(counters.c.labels).distinct()).scalars()
        self._saved = {tuple(json.loads(label))[: len(GROUP)] for label in labels}
        self._names = [{group[position] for group in self._saved} for position in range(len(GROUP))]

    def find(self, *group: str) -> tuple[str, ...]:
        """The group under which a job is counted."""
        if group in self._saved:
            return group
        names = tuple(self.name(position, name) for position, name in enumerate(group))
        return names if names in self._saved else (names[0], _OTHER, _OTHER, _OTHER)

    def name(self, position: int, name: str) -> str:
        """One name as it is counted."""
        return name if name in self._names[position] or not name else _OTHER


def _compare_jobs(connection: Connection) -> Iterator[Difference]:
    query = (
        "SELECT j.number, j.cluster, j.job_id, j.outcome, j.gpu_seconds, j.cost, o.outcome,"
        " t.gpu_seconds, t.cost FROM jobs AS j LEFT JOIN rc_outcomes AS o ON o.job = j.number"
        " LEFT JOIN rc_totals AS t ON t.job = j.number ORDER BY j.number"
    )
    for _, cluster, job_id, *values in connection.execute(text(query)):
        for position, what in enumerate(("outcome", "gpu_seconds", "cost")):
            yield Difference(what, f"{cluster}/{job_id}", values[position], values[position + 3])


def _compare_counters(connection: Connection, groups: _Groups) -> Iterator[Difference]:
    """By family and group: what fell from one label to another is in no single series."""
    stored: dict[tuple[str, ...], float] = defaultdict(float)
    for row in connection.execute(select(counters)):
        labels = tuple(json.loads(row.labels))
        if row.name in _FAMILIES:
            stored[(row.name, *labels[: len(GROUP)])] += row.value
        elif row.name == AMENDED.name:
            stored[(labels[-1], *labels[: len(GROUP)])] -= row.value
    recounted: dict[tuple[str, ...], float] = defaultdict(float)
    query = (
        "SELECT c.family, j.cluster, r.queue, r.project, r.job_class, sum(c.value)"
        " FROM rc_counts AS c JOIN jobs AS j ON j.number = c.job JOIN rc_jobs AS r ON r.job = c.job"
        " GROUP BY c.family, j.cluster, r.queue, r.project, r.job_class"
    )
    for family, *group, value in connection.execute(text(query)):
        recounted[(f"lockstep_ledger_{family}_total", *groups.find(*group))] += value
    for key in sorted(stored.keys() | recounted.keys()):
        yield Difference(key[0], "/".join(key[1:]), stored[key], recounted[key])


def _compare_windows(
    connection: Connection, groups: _Groups, now_seconds: float | None
) -> Iterator[Difference]:
    """By whole hours, within the longest window: older events may be thinned."""
    sums: list[dict[tuple[Any, ...], float]] = [defaultdict(float), defaultdict(float)]
    query = ("SELECT j.cluster, r.job_class, w.slo, w.time, w.good, w.total FROM rc_rows AS w"
             " JOIN jobs AS j ON j.number = w.job JOIN rc_jobs AS r ON r.job = w.job")  # fmt: skip
    rows = [(1, row) for row in connection.execute(text(query))]
    for table in (slo_events, slo_rollups):
        names = ("cluster", "job_class", "slo", "time", "good", "total")
        stored = connection.execute(select(*(table.c[name] for name in names)))
        rows += [(0, row) for row in stored]
    if now_seconds is None:
        now_seconds = max((row[3] for _, row in rows), default=0.0)
    oldest = now_seconds - max(SLO_WINDOWS.values()) + _HOUR_SECONDS
    for side, (cluster, job_class, slo, time, good, total) in rows:
        hour = int(time // _HOUR_SECONDS)
        if hour * _HOUR_SECONDS >= oldest:
            key = (groups.name(0, cluster), groups.name(len(GROUP) - 1, job_class), slo, hour)
            sums[side][(*key, "good")] += good
            sums[side][(*key, "total")] += total
    for key in sorted(sums[0].keys() | sums[1].keys()):
        yield Difference("window", "/".join(map(str, key)), sums[0][key], sums[1][key])
