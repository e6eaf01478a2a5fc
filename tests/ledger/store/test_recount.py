"""The recount in SQL says what the independent model says, and finds whatever is not so."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, Engine, delete, insert, select, text, update

from lockstep_catalogue.ledger import GPU_SECONDS, JOBS_FINISHED
from lockstep_ledger.command import ledger as command
from lockstep_ledger.store import recount
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.recount import Waits, differences
from lockstep_ledger.store.tables import counters, events, jobs, slo_events

from ..model.arrivals import Arrival
from ..model.deliveries import MODES, Mode, arrivals_of, deliver, last_moment
from ..model.histories import make_history
from ..model.job_history import JobHistory, Settings
from ..model.ledger_model import expect, histories_of
from .test_ledger_store import job_stories, opened, write

LATER_SECONDS = 60 * 86_400.0
Sums = dict[tuple[Any, ...], tuple[float, float]]
_LABELS = {
    "gpu_seconds": ("goodput",), "jobs_finished": ("job_outcome", "failure_class"),
    "jobs_finished_gpu_seconds": ("job_outcome", "failure_class"), "cost": ("currency",),
    "job_deadlines": ("deadline",), "requeues": ("requeued_after",), "resumes": ("restore",),
    "checkpoints": ("outcome",),
}  # fmt: skip
_COUNTS = """
SELECT family, label, second_label, j.cluster, r.queue, r.project, r.job_class, value
FROM rc_counts AS x JOIN jobs AS j ON j.number = x.job JOIN rc_jobs AS r ON r.job = x.job
"""
_ROWS = """
SELECT j.cluster, r.job_class, slo, time, good, total
FROM rc_rows AS x JOIN jobs AS j ON j.number = x.job JOIN rc_jobs AS r ON r.job = x.job
"""


def store(engine: Engine, histories: list[JobHistory], now: float) -> None:
    """Writes jobs and events into the tables without the ledger's own code."""
    empty = {"project": "", "queue": "", "job_class": "", "user": "", "name": "", "updated": 0.0,
             "status": "finished", "gpu_seconds": 0.0, "cost": 0.0, "counted": False,
             "state": "{}"}  # fmt: skip
    job_rows: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for number, job in enumerate(histories, 1):
        names = {"cluster": job.joined.cluster, "job_id": job.joined.job_id}
        job_rows.append({**empty, **names, "number": number})
        facts = [(f.id, f.kind, f.node, f.attempt, f.time, f.received, f.fields) for f in job.facts]
        if job.is_finished:
            is_queued = not job.runs or job.waits_in_queue
            begin = None if is_queued else job.runs[-1].begin
            settled = ("ledger_settled", "", 0, now, now, {"run_begin": begin})
            facts.append((f"settled-{number}", *settled))
        for name, kind, node, attempt, time, received, fields in facts:
            body = json.dumps({"fields": dict(fields)})
            rows.append({"sequence": len(rows) + 1, "id": name, "job": number, "kind": kind,
                         "node": node, "attempt": attempt, "time": time, "received": received,
                         "body": body})  # fmt: skip
    with engine.begin() as connection:
        connection.execute(delete(events))
        connection.execute(delete(jobs))
        connection.execute(insert(jobs), job_rows)
        connection.execute(insert(events), rows)


def recounted(connection: Connection) -> tuple[Sums, Sums]:
    """What jobs add to counters and to windows, as SQL says."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN")
    recount._count(connection, Waits())
    counts: dict[tuple[Any, ...], float] = defaultdict(float)
    for family, label, second, *group, value in connection.execute(text(_COUNTS)):
        labels = dict(zip(("cluster", "queue", "project", "job_class"), group, strict=True))
        labels |= dict(zip(_LABELS.get(family, ()), (label, second), strict=False))
        counts[family, tuple(sorted(labels.items()))] += value
    windows: dict[tuple[Any, ...], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for *key, time, good, total in connection.execute(text(_ROWS)):
        before = windows[(*key, round(time, 3))]
        windows[(*key, round(time, 3))] = (before[0] + good, before[1] + total)
    connection.rollback()
    return {key: (value, 0.0) for key, value in counts.items()}, dict(windows)


def expected(arrivals: list[Arrival], now: float) -> tuple[Sums, Sums]:
    """The same, as the model says."""
    model = expect(arrivals, Settings(), now)
    windows: dict[tuple[Any, ...], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for row in model.rows:
        key = (row.cluster, row.job_class, row.slo, round(row.time, 3))
        windows[key] = (windows[key][0] + row.good, windows[key][1] + row.total)
    counts = {
        key: (value, 0.0) for key, value in model.counters.items() if not key[0].endswith("_count")
    }
    return counts, dict(windows)


def compare(engine: Engine, seed: int, mode: Mode) -> list[str]:
    steps = deliver(make_history(seed, has_mishaps=seed % 2 == 1), mode, seed)
    arrivals, now = arrivals_of(steps), last_moment(steps) + LATER_SECONDS
    store(engine, histories_of(arrivals, Settings(), now), now)
    lines = []
    with engine.connect() as connection:
        for ours, models in zip(recounted(connection), expected(arrivals, now), strict=True):
            for key in sorted(ours.keys() | models.keys(), key=str):
                pair = ours.get(key, (0.0, 0.0)), models.get(key, (0.0, 0.0))
                if pair[0] != pytest.approx(pair[1], rel=1e-6, abs=1e-3):
                    lines.append(f"seed {seed} {mode} {key}: SQL {pair[0]}, model {pair[1]}")
    return lines


@pytest.mark.parametrize("mode", ["in_order", "cut_off", "slurm_first"])
def test_the_recount_is_what_the_model_says(dsn: str, mode: Mode) -> None:
    engine = open_store(dsn)
    for seed in range(8):
        assert compare(engine, seed, mode) == []
    engine.dispose()


@pytest.mark.exhaustive
@pytest.mark.release
@pytest.mark.timeout(3600)
def test_thousands_of_recounts_are_what_the_model_says(dsn: str) -> None:
    engine = open_store(dsn)
    for seed in range(1000, 2500 if dsn.endswith(".db") else 1500):
        assert compare(engine, seed, MODES[seed % len(MODES)]) == []
    engine.dispose()


def recount_json(dsn: str) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(command, ["recount", "--store", dsn, "--json"])
    assert result.exit_code in {0, 1}, result.output
    return result.exit_code, json.loads(result.output)["differences"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (update(jobs).where(jobs.c.number == 3).values(outcome="cancelled"), "outcome"),
        (update(jobs).where(jobs.c.number == 3).values(gpu_seconds=1.5), "gpu_seconds"),
        (update(jobs).where(jobs.c.number == 3).values(cost=99.0), "cost"),
        (update(counters).where(counters.c.name == JOBS_FINISHED.name).values(value=7.0),
         JOBS_FINISHED.name),
        (delete(events).where(events.c.kind == "goodput"), GPU_SECONDS.name),
        (insert(slo_events).values(time=1.7e9, cluster="east", slo="goodput", good=1, total=1),
         "window"),
    ],
)  # fmt: skip
def test_what_was_changed_by_hand_is_found(dsn: str, change: Any, what: str) -> None:
    with opened(dsn, node_seconds=0, requeue_seconds=0) as writer:
        write(writer, *job_stories(10, seed=2))
        assert differences(writer._engine) == []
        with writer._engine.begin() as connection:
            newest = select(slo_events.c.time).order_by(slo_events.c.time.desc()).limit(1)
            time = connection.execute(newest).scalar()
            connection.execute(change)
            moved = slo_events.c.time == 1.7e9
            connection.execute(update(slo_events).where(moved).values(time=time))
        found = differences(writer._engine)
    assert what in {difference.what for difference in found}


def test_the_command_prints_differences_and_says_so_by_its_status(tmp_path: Path) -> None:
    dsn = str(tmp_path / "ledger.db")
    with opened(dsn, node_seconds=0, requeue_seconds=0) as writer:
        write(writer, *job_stories(6, seed=2))
    assert recount_json(dsn) == (0, [])
    engine = open_store(dsn)
    with engine.begin() as connection:
        connection.execute(update(jobs).where(jobs.c.job_id == "job-1").values(cost=12.5))
    engine.dispose()
    status, [difference] = recount_json(dsn)
    assert status == 1
    assert difference == {"what": "cost", "of": "east/job-1", "stored": 12.5, "recounted": 0.0}
    table = CliRunner().invoke(command, ["recount", "--store", dsn])
    assert table.exit_code == 1
    assert "east/job-1" in table.output
    assert CliRunner().invoke(command, ["recount", "--store", "/no"]).exit_code == 2
