"""Fills a store with ten million events of 100,000 jobs and prints how long the ledger answers.

The events that change a job go through the ledger's own rules; the rest, of a kind that changes
nothing, is inserted in bulk. A client in this process asks one question after the other, while
another delivers events.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, insert, select, text

sys.path.insert(0, str(Path(__file__).parent))

from ledger_process import LedgerProcess
from throughput import job_events

from lockstep_ledger.ingest.document import read_delivery
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import events, jobs
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter

_CHUNK = 500
_SPAN_SECONDS = 28 * 86_400.0


def fill(engine: Engine, num_jobs: int, num_events: int) -> None:
    """Fills the store."""
    begin = time.time()
    writer = StoreWriter(engine)
    for first in range(0, num_jobs, _CHUNK):
        batch: list[dict[str, Any]] = []
        for job in range(first, min(first + _CHUNK, num_jobs)):
            moment = begin - _SPAN_SECONDS * (1 - job / num_jobs)
            batch += job_events(moment, job, f"n{job % 1000}")
        for start in range(0, len(batch), 1000):
            body = {"version": 1, "cluster": "bench", "events": batch[start : start + 1000]}
            writer.write([Submission(read_delivery(json.dumps(body).encode(), begin).events)])
    pad(engine, num_events - writer.sequence, writer.sequence, num_jobs)
    seconds = time.time() - begin
    print(f"filled in {seconds:.0f} s", file=sys.stderr, flush=True)


def pad(engine: Engine, count: int, sequence: int, num_jobs: int) -> None:
    """Inserts events that change nothing, spread over all jobs."""
    with engine.connect() as connection:
        times = {row.number: row.ended for row in connection.execute(select(jobs))}
    body = '{"fields":{"step":100000,"seconds":1.25,"loss":2.3125}}'
    for first in range(0, count, 100_000):
        with engine.begin() as connection:
            connection.execute(
                insert(events),
                [
                    {
                        "sequence": sequence + 1 + index,
                        "id": f"{index:032x}",
                        "job": index % num_jobs + 1,
                        "kind": "step_report",
                        "node": "n1",
                        "attempt": 0,
                        "time": times[index % num_jobs + 1],
                        "received": times[index % num_jobs + 1],
                        "body": body,
                    }
                    for index in range(first, min(first + 100_000, count))
                ],
            )


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
            message["events"] = job_events(time.time() - 1, job, "live")
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
    if engine.dialect.name == "sqlite":
        size = Path(store).stat().st_size / 2**30
        print(f"the file has {size:.1f} GiB", file=sys.stderr)
    engine.dispose()


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
        "/api/jobs/n77-job-50077",
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
