"""Delivers events at a constant rate and prints how long the ledger takes to answer.

Open loop: a request's time begins when it was due, so a ledger that falls behind is seen. The
client, with its connections of many nodes, runs on the same machine.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ledger"))

from service import LedgerProcess  # type: ignore[import-not-found]  # a module of the tests

_CONNECTIONS = 50
_JOB_STEPS = 8
_HEAD = "POST /api/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def job_events(now: float, job: int, node: str, run: str = "") -> list[dict[str, Any]]:
    """The events of one short job of one node; ``run`` keeps the ids of two runs apart."""
    described = {"num_nodes": 1, "num_gpus": 8, "project": f"p{job % 10}", "queue": f"q{job % 3}"}
    seconds = {"productive": 80.0, "startup": 8.0, "data_wait": 2.0}
    stages: list[tuple[str, dict[str, Any]]] = [
        ("job_started", described),
        ("attempt_started", {"num_gpus": 8}),
        *(("checkpoint_durable", {"step": step}) for step in range(_JOB_STEPS)),
        ("goodput", {"rank_seconds": seconds, "num_gpus": 8, "num_ranks": 8}),
        ("attempt_ended", {"outcome": "succeeded"}),
        ("job_finished", {"outcome": "succeeded"}),
    ]
    return [
        {
            "id": f"{node}-{job}-{index}-{os.getpid()}{run}",
            "kind": kind,
            "job_id": f"{node}-job-{job}{run}",
            "attempt": 0,
            "time": now + index * 1e-3,
            "fields": fields,
        }
        for index, (kind, fields) in enumerate(stages)
    ]


def batches(node: str, size: int) -> Iterator[bytes]:
    """Bodies of ``size`` events of one node, in order."""
    pending: list[dict[str, Any]] = []
    job = 0
    while True:
        while len(pending) < size:
            pending += job_events(time.time() - 1, job, node, f"-{size}")
            job += 1
        message = {"version": 1, "cluster": "bench", "node": node, "events": pending[:size]}
        del pending[:size]
        yield json.dumps(message).encode()


def batches_of_job(connection: int, num_nodes: int, size: int) -> Iterator[bytes]:
    """Bodies of one running job of many nodes; a connection carries the nodes in turn.

    Each node says that its attempt began, and then reports: a durable checkpoint, its goodput.
    """
    job = f"large-{size}-{os.getpid()}"
    numbers = range(connection, num_nodes, _CONNECTIONS)
    counts = dict.fromkeys(numbers, 0)
    described = {"num_nodes": num_nodes, "num_gpus": 8 * num_nodes, "project": "p1", "queue": "q1"}
    while True:
        for number in numbers:
            events = []
            for index in range(counts[number], counts[number] + size):
                now = time.time()
                seconds = {"productive": 80.0 * index, "data_wait": 2.0 * index}
                kind, fields = (
                    ("job_started", described)
                    if index == 0
                    else ("attempt_started", {"num_gpus": 8})
                    if index == 1
                    else ("checkpoint_durable", {"step": index})
                    if index % 2
                    else ("goodput", {"rank_seconds": seconds, "num_gpus": 8, "num_ranks": 8})
                )
                events.append({"id": f"{job}-{number}-{index}", "kind": kind, "job_id": job,
                               "attempt": 0, "time": now, "fields": fields})  # fmt: skip
            counts[number] += size
            message = {"version": 1, "cluster": "bench", "node": f"n{number}", "events": events}
            yield json.dumps(message).encode()


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When a node delivers, on the monotonic clock."""

    interval_seconds: float
    begin: float
    end: float


async def deliver(port: int, bodies: Iterator[bytes], pace: Pace, out: list[float]) -> None:
    """A request every interval over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    due = pace.begin
    for body in bodies:
        due += pace.interval_seconds
        if due > pace.end:
            break
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        writer.write(f"{_HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer.partition(b"\r\n")[0], answer
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        out.append(time.perf_counter() - due)
    writer.close()


async def run(
    port: int, events_per_second: float, size: int, seconds: float, job_nodes: int
) -> list[float]:
    """Latencies of all requests."""
    interval = _CONNECTIONS * size / events_per_second
    begin = time.perf_counter() + 0.5
    latencies: list[float] = []
    nodes = []
    for node in range(_CONNECTIONS):
        # Spread over the interval, as the clocks of nodes are.
        first = begin + (node / _CONNECTIONS - 1) * interval
        pace = Pace(interval_seconds=interval, begin=first, end=begin + seconds)
        bodies = batches_of_job(node, job_nodes, size) if job_nodes else batches(f"n{node}", size)
        nodes.append(deliver(port, bodies, pace, latencies))
    await asyncio.gather(*nodes)
    return latencies


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    store: str, events_per_second: float, size: int, seconds: float, job_nodes: int
) -> None:
    """Prints one row of the table."""
    ledger = LedgerProcess(store, ("--max-rate", "1000000")).start()
    assert ledger.process is not None
    used = processor_seconds(ledger.process.pid)
    latencies = asyncio.run(run(ledger.port, events_per_second, size, seconds, job_nodes))
    used = processor_seconds(ledger.process.pid) - used
    ledger.stop()
    cuts = statistics.quantiles(latencies, n=1000)
    rate = len(latencies) * size / seconds
    print(
        f"| {store.partition(':')[0] if '://' in store else 'sqlite'} | {size} | {rate:.0f} "
        f"| {cuts[499] * 1e3:.1f} | {cuts[989] * 1e3:.1f} | {cuts[998] * 1e3:.1f} "
        f"| {max(latencies) * 1e3:.0f} | {used / seconds:.2f} |",
        flush=True,
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="postgresql://...; an SQLite file when left out")
    parser.add_argument("--rate", type=float, default=1000.0, help="events a second")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 10, 100])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--job-nodes", type=int, default=0, help="nodes of one job of all events")
    options = parser.parse_args()
    print("| store | events a request | events a second | p50 ms | p99 ms | p99.9 ms | longest ms "
          "| cores of the ledger |")  # fmt: skip
    print("| --- " * 8 + "|")
    for size in options.batch:
        with tempfile.TemporaryDirectory() as folder:
            store = options.store or str(Path(folder, "ledger.db"))
            measure(store, options.rate, size, options.seconds, options.job_nodes)


if __name__ == "__main__":
    main()
