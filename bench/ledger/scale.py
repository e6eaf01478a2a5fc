"""Fills a store with ten million events of 100,000 jobs and prints how long the ledger answers.

2,000 jobs go through the ledger's own rules and are copied by SQL, under other ids and at other
times; the rest are events of a kind that changes nothing. A client in this process asks one
question after the other, while another delivers events.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
from sqlalchemy import Connection, Engine, Table, func, select, text, update

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ledger"))

from service import LedgerProcess  # type: ignore[import-not-found]  # a module of the tests
from throughput import job_events

from lockstep_ledger.ingest.document import read_delivery
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import counters, events, jobs, slo_events
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter

_CHUNK = 500
_ORIGINALS = 2000
_SPAN_SECONDS = 28 * 86_400.0


def fill(engine: Engine, num_jobs: int, num_events: int) -> None:
    """Fills the store: a share by the ledger's rules, copies of it by SQL, the rest by padding."""
    begin = time.time()
    num_originals = min(_ORIGINALS, num_jobs)
    copies = num_jobs // num_originals
    writer = StoreWriter(engine)
    for first in range(0, num_originals, _CHUNK):
        batch = []
        for job in range(first, min(first + _CHUNK, num_originals)):
            moment = begin - _SPAN_SECONDS * (1 - job / num_jobs)
            body = {"version": 1, "cluster": "bench", "node": f"n{job % 1000}"}
            body["events"] = job_events(moment, job, f"n{job % 1000}")
            batch.append(Submission(read_delivery(json.dumps(body).encode(), begin).events))
        writer.write(batch)
    shift_seconds = _SPAN_SECONDS * num_originals / num_jobs
    with engine.begin() as connection:
        connection.execute(text(_SERIES))
        later = {name: f"{name} + k * {shift_seconds}" for name in ("started", "ended", "updated")}
        state = "replace(state, '\"' || job_id || '\"', '\"' || job_id || '-' || k || '\"')"
        copy_rows(connection, jobs, ("number", num_originals), copies, state=state, **later,
                  number=f"number + k * {num_originals}", job_id="job_id || '-' || k")  # fmt: skip
        later = {"time": f"time + k * {shift_seconds}"}
        copy_rows(connection, events, ("sequence", writer.sequence), copies, **later,
                  sequence=f"sequence + k * {writer.sequence}", id="id || '-' || k",
                  job=f"job + k * {num_originals}")  # fmt: skip
        num_rows = connection.execute(select(func.max(slo_events.c.number))).scalar() or 0
        copy_rows(connection, slo_events, ("number", num_rows), copies, **later)
        connection.execute(update(counters).values(value=counters.c.value * copies))
        padding = num_events - copies * writer.sequence
        values = {"first": copies * writer.sequence, "count": padding, "body": _BODY}
        connection.execute(text(_PADDING), {**values, "jobs": copies * num_originals})
    print(f"filled in {time.time() - begin:.0f} s", file=sys.stderr, flush=True)


_SERIES = """
CREATE TEMPORARY TABLE copy AS WITH RECURSIVE copy(k) AS (
    SELECT 1 UNION ALL SELECT k + 1 FROM copy WHERE k < 1000
) SELECT k FROM copy
"""


def copy_rows(
    connection: Connection, table: Table, first: tuple[str, int], copies: int, **changed: str
) -> None:
    """Adds copies of rows, up to the number in a column, with other values of some columns."""
    names = [column.name for column in table.c if column.autoincrement is not True]
    values = ", ".join(changed.get(name, f'"{name}"') for name in names)
    columns = ", ".join(f'"{name}"' for name in names)
    chosen = f"k < {copies} AND {first[0]} <= {first[1]} ORDER BY k, {first[0]}"
    rows = f"SELECT {values} FROM copy CROSS JOIN {table.name} WHERE {chosen}"  # noqa: S608  # names of tables
    connection.execute(text(f"INSERT INTO {table.name} ({columns}) {rows}"))


_BODY = '{"fields":{"step":100000,"seconds":1.25,"loss":2.3125}}'
_PADDING = """
INSERT INTO events (sequence, id, job, kind, node, attempt, time, received, body)
WITH RECURSIVE pad(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM pad WHERE n < :count)
SELECT :first + n, 'pad-' || n, 1 + (n * 7919) % :jobs, 'step_report', 'n1', 0,
       1700000000.0 + n, 1700000000.0 + n, :body
FROM pad
"""
"""Events of a kind that changes nothing, spread over all jobs."""


def ask(url: str, path: str, times: int, pause: float = 0.2) -> list[float]:
    """Seconds of each answer."""
    seconds = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(times):
            begin = time.perf_counter()
            answer = client.get(path)
            answer.raise_for_status()
            seconds.append(time.perf_counter() - begin)
            time.sleep(pause)
    return seconds


def deliver(url: str, stop: threading.Event) -> None:
    """Delivers the events of a job ten times a second."""
    job = 0
    with httpx.Client(base_url=url, timeout=60) as client:
        while not stop.wait(0.1):
            message = {"version": 1, "cluster": "bench", "node": "n", "events": []}
            message["events"] = job_events(time.time() - 1, job, "live", f"-{os.getpid()}")
            client.post("/api/events", json=message).raise_for_status()
            job += 1


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="a path or postgresql://...; filled if it is empty")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = options.store or str(Path(folder, "ledger.db"))
        fill_where_empty(store, options.jobs, options.events)
        if options.times:
            print_answer_times(store, options.times)


def fill_where_empty(store: str, num_jobs: int, num_events: int) -> None:
    """Fills a store that holds no job."""
    engine = open_store(store)
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.execute(text("PRAGMA synchronous=OFF"))
    with engine.connect() as connection:
        is_filled = connection.execute(select(jobs.c.number).limit(1)).first() is not None
    if not is_filled:
        fill(engine, num_jobs, num_events)
    engine.dispose()
    if engine.dialect.name == "sqlite":
        size = Path(store).stat().st_size / 2**30
        print(f"the file has {size:.2f} GiB", file=sys.stderr)


def print_answer_times(store: str, times: int) -> None:
    """Asks a ledger on the store each question so many times while events arrive."""
    begin = time.perf_counter()
    ledger = LedgerProcess(store, ("--max-rate", "1000000")).start()
    print(f"started in {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    stop = threading.Event()
    threading.Thread(target=deliver, args=(ledger.url, stop), daemon=True).start()
    print("| question | median ms | p95 ms | longest ms |\n| --- | --- | --- | --- |")
    for path in (
        "/metrics",
        "/api/jobs",
        "/api/jobs?project=p3&limit=500",
        "/api/jobs?outcome=succeeded&after=50000",
        "/api/jobs?outcome=failed",
        "/api/jobs?user=nobody",
        "/api/jobs/n77-job-77",
        "/",
    ):
        seconds = ask(ledger.url, path, times)
        cuts = statistics.quantiles(seconds, n=20)
        print(
            f"| `{path}` | {cuts[9] * 1e3:.0f} | {cuts[18] * 1e3:.0f} | {max(seconds) * 1e3:.0f} |",
            flush=True,
        )
    stop.set()
    ledger.stop()


if __name__ == "__main__":
    main()
