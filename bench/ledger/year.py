"""A year of 1,000 nodes, rolled up and thinned: size, start, scrapes, questions, review and export.

440 jobs of 1 to 128 nodes, with the events that --keep-events leaves of them, go through the
ledger's own rules; SQL copies them 250 times over a year, under other ids and at other times. The
newest hour of reports and the buckets of 28 days are generated.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, select, text

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from ledger_process import LedgerProcess
from postgres_server import postgres_server
from scale import ask

from lockstep_ledger.ingest.document import read_delivery
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import counters, events, slo_events, slo_rollups
from lockstep_ledger.store.tables import jobs as jobs_table
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter

_YEAR_SECONDS = 365 * 86_400.0
_SIZES, _WEIGHTS = (1, 2, 4, 8, 16, 32, 64, 128), (40, 15, 15, 12, 8, 6, 3, 1)
_CLASSES, _QUEUES = ("pretraining", "finetuning", "research", "debug"), ("long", "short", "spot")
_STEPS, _GPUS, _BATCH = 10, 8, 10


def job_events(number: int, begin: float, dice: random.Random) -> list[dict[str, Any]]:
    """What is left of the events of one job of some nodes."""
    nodes = dice.choices(_SIZES, _WEIGHTS)[0]
    seconds = dice.uniform(600, 16 * 3600)
    outcome = dice.choices(("succeeded", "failed", "preempted", "cancelled"), (75, 15, 5, 5))[0]
    failed = {"failure_class": dice.choice(("infra", "user")), "cause": "xid"}
    ending = {"outcome": outcome, **(failed if outcome == "failed" else {})}
    described = {"num_nodes": nodes, "num_gpus": nodes * _GPUS, "user": f"u{dice.randrange(60)}",
                 "project": f"p{number % 20}", "queue": _QUEUES[number % 3],
                 "job_class": _CLASSES[number % 4], "price_per_gpu_hour": 2.5,
                 "currency": "EUR"}  # fmt: skip
    totals = {"productive": 0.8, "startup": 0.05, "data_wait": 0.05, "communication": 0.08}
    report = {"rank_seconds": {s: share * seconds * _GPUS for s, share in totals.items()},
              "num_gpus": _GPUS, "num_ranks": _GPUS}  # fmt: skip
    found: list[tuple[float, str, int, dict[str, Any]]] = []
    for node in range(nodes):
        found += [
            (0.0, "job_started", node, described),
            (1.0, "attempt_started", node, {"num_gpus": _GPUS}),
            (seconds - 2, "goodput", node, report),
            (seconds - 1, "attempt_ended", node, ending),
            (seconds, "job_finished", node, ending),
        ]
    for step in range(1, _STEPS + 1):
        for node in {0, nodes - 1}:
            moment = seconds * step / (_STEPS + 1) + node * 0.01
            found.append((moment, "checkpoint_durable", node, {"step": step}))
    return [
        {"id": f"y{number}-{index}", "kind": kind, "job_id": f"job-{number}", "attempt": 0,
         "time": begin + after, "node": f"node-{(number * 7 + node) % 1000}", "fields": fields}
        for index, (after, kind, node, fields) in enumerate(sorted(found, key=lambda e: e[0]))
    ]  # fmt: skip


def fill(engine: Engine, originals: int, copies: int) -> None:
    """Fills an empty store."""
    begin, dice = time.time(), random.Random(1)
    shift = _YEAR_SECONDS / copies
    clock = [begin]
    writer = StoreWriter(engine, clock=lambda: clock[0], clusters=frozenset({"year"}))
    batch: list[dict[str, Any]] = []
    for number in range(originals):
        moment = begin - _YEAR_SECONDS - 86_400.0 + shift * number / originals
        batch += job_events(number, moment, dice)
        if number % _BATCH == _BATCH - 1:
            for first in range(0, len(batch), 1000):
                body = {"version": 1, "cluster": "year", "events": batch[first : first + 1000]}
                delivery = read_delivery(json.dumps(body).encode(), begin)
                assert not delivery.refused, delivery.refused[0]
                writer.write([Submission(delivery.events)])
            batch = []
    with engine.connect() as connection:
        jobs = connection.execute(text("SELECT max(number) FROM jobs")).scalar()
    clock[0] += 3 * 86_400.0  # after all waits
    while writer.settle_due():
        pass
    print(f"{originals} originals in {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
    values = {"jobs": jobs, "events": writer.sequence, "copies": copies, "shift": shift,
              "now": begin}  # fmt: skip
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(text("PRAGMA cache_size=-1500000"))
        for index in events.indexes:
            index.drop(connection)
        for statement in filter(str.strip, _COPY.split(";")):
            connection.execute(text(statement), {
                name: value for name, value in values.items() if f":{name}" in statement
            })  # fmt: skip
        for index in events.indexes:
            index.create(connection)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ANALYZE"))
    print(f"filled in {time.time() - begin:.0f} s", file=sys.stderr, flush=True)


_COPY = """
CREATE TEMPORARY TABLE numbers AS WITH RECURSIVE numbers(k) AS (
    SELECT 1 UNION ALL SELECT k + 1 FROM numbers WHERE k < 4000) SELECT k FROM numbers;
DELETE FROM slo_events;
INSERT INTO jobs (number, cluster, job_id, project, queue, job_class, "user", name, status, outcome,
                  failure_class, cause, culprit_node, submitted, started, ended, updated,
                  gpu_seconds, cost, settle_at, counted, state, owner, facts, run_begin)
SELECT number + k * :jobs, cluster, job_id || '-' || k, project, queue, job_class, "user", name,
       status, outcome, failure_class, cause, culprit_node, submitted, started + k * :shift,
       ended + k * :shift, updated + k * :shift, gpu_seconds, cost, settle_at, counted,
       replace(state, '"' || job_id || '"', '"' || job_id || '-' || k || '"'), owner,
       replace(facts, '"' || job_id || '"', '"' || job_id || '-' || k || '"'), run_begin
FROM numbers CROSS JOIN jobs WHERE k < :copies AND number <= :jobs ORDER BY k, number;
INSERT INTO events (sequence, id, job, kind, node, attempt, time, received, body)
SELECT sequence + k * :events, k || '-' || id, job + k * :jobs, kind, node, attempt,
       time + k * :shift, received, body
FROM numbers CROSS JOIN events WHERE k < :copies AND sequence <= :events ORDER BY k, sequence;
INSERT INTO spans (job, node, number, state)
SELECT job + k * :jobs, node, number, state
FROM numbers CROSS JOIN spans WHERE k < :copies AND job <= :jobs ORDER BY k, job, node, number;
INSERT INTO marks (job, what, attempt, number, time)
SELECT job + k * :jobs, what, attempt, number, time + k * :shift
FROM numbers CROSS JOIN marks WHERE k < :copies AND job <= :jobs ORDER BY k, job;
UPDATE counters SET value = value * :copies;
INSERT INTO slo_rollups (seconds, time, cluster, job_class, slo, good, total)
SELECT 3600, :now - 86400 - k * 3600, 'year', job_class, slo, 8, 10
FROM numbers CROSS JOIN (SELECT DISTINCT job_class FROM jobs) AS c CROSS JOIN (
    SELECT 'goodput' AS slo UNION ALL SELECT 'ettr' UNION ALL SELECT 'job_success'
    UNION ALL SELECT 'job_success_gpu_seconds' UNION ALL SELECT 'requeue' UNION ALL
    SELECT 'queue_wait' UNION ALL SELECT 'checkpoint_success' UNION ALL SELECT 'resume_success'
    UNION ALL SELECT 'preemption_loss' UNION ALL SELECT 'time_to_complete') AS s WHERE k <= 672;
INSERT INTO slo_rollups (seconds, time, cluster, job_class, slo, good, total)
SELECT 60, :now - 3600 - k * 60, 'year', job_class, slo, 8, 10
FROM numbers CROSS JOIN (SELECT DISTINCT job_class FROM jobs) AS c CROSS JOIN (
    SELECT 'goodput' AS slo UNION ALL SELECT 'ettr' UNION ALL SELECT 'checkpoint_success'
    UNION ALL SELECT 'requeue') AS s WHERE k <= 1380;
INSERT INTO slo_events (time, cluster, job_class, slo, good, total)
SELECT :now - 3600 + k * 1.2, 'year', 'research', slo, 400, 480
FROM numbers CROSS JOIN (SELECT 'goodput' AS slo UNION ALL SELECT 'ettr') AS s
CROSS JOIN (SELECT k AS n FROM numbers AS twenty WHERE k <= 20) AS twenty WHERE k <= 3000
"""
"""120,000 rows of reports in the newest hour: 1,000 nodes, a report a minute, two objectives."""


def size_bytes(engine: Engine, store: str) -> int:
    """Size of the store with its indexes."""
    if engine.dialect.name == "sqlite":
        return Path(store).stat().st_size
    with engine.connect() as connection:
        return int(
            connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        )


def run_command(store: str, *words: str) -> float:
    """Seconds of a command of the ledger."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "lockstep_cli.main", "ledger", *words, "--store", store]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure(store: str, folder: Path, options: argparse.Namespace) -> None:
    """Fills, measures and prints."""
    engine = open_store(store)
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.execute(text("PRAGMA synchronous=OFF"))
    fill(engine, options.originals, options.copies)
    tables = (jobs_table, events, slo_rollups, slo_events, counters)
    with engine.connect() as connection:
        queries = [select(func.count()).select_from(table) for table in tables]
        counts = [connection.execute(query).scalar() for query in queries]
    size = size_bytes(engine, store)
    engine.dispose()
    print(f"| jobs, events, buckets, rows of the newest hour, series | {counts} |")
    print(f"| size, GiB | {size / 2**30:.2f} |")
    begin = time.perf_counter()
    served = ("--cluster", "year", "--keep-events", "90d")
    ledger = LedgerProcess(store, ("--max-rate", "1000000", *served)).start()
    print(f"| start until it serves, s | {time.perf_counter() - begin:.1f} |", flush=True)
    try:
        ask_all(ledger, options.times)
        time_commands(store, folder)
    finally:
        ledger.stop()


def ask_all(ledger: LedgerProcess, times: int) -> None:
    """Prints how long answers take."""
    for path in ("/metrics", "/api/jobs", "/api/jobs?project=p3&limit=500",
                 "/api/jobs?outcome=failed&limit=500", "/api/jobs/job-77-100", "/"):  # fmt: skip
        seconds = sorted(ask(ledger.url, path, times))
        median, longest = statistics.median(seconds) * 1e3, seconds[-1] * 1e3
        print(f"| `{path}`, ms, median and longest | {median:.0f}, {longest:.0f} |", flush=True)


def time_commands(store: str, folder: Path) -> None:
    """Prints how long commands take beside the ledger."""
    week = time.strftime("%G-W%V", time.gmtime(time.time() - 14 * 86_400))
    for words in (("review", "--week", week), ("export", "jobs", str(folder / "jobs.parquet")),
                  ("backup", str(folder / "backup.db"))):  # fmt: skip
        took = run_command(store, *words)
        print(f"| `{words[0]}` beside the ledger, s | {took:.1f} |", flush=True)


def main() -> None:
    """Prints one table a store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--originals", type=int, default=440)
    parser.add_argument("--copies", type=int, default=250)
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.kind == "sqlite":
            measure(str(Path(folder, "ledger.db")), Path(folder), options)
            return
        settings = (
            "-c fsync=off -c shared_buffers=1GB -c max_wal_size=8GB -c maintenance_work_mem=512MB"
        )
        with postgres_server(settings) as server:
            measure(server.dsn, Path(folder), options)


if __name__ == "__main__":
    main()
