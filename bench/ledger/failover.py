"""Kills the leader of two ledgers on one PostgreSQL again and again while events come in.

Senders deliver as agents do: the same batch again, to either ledger, until it is answered. In the
end every event has to be stored once, and counters and outcomes have to equal a recount.
"""

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from ledger_process import LedgerProcess
from postgres_server import postgres_server
from throughput import job_events

from lockstep_catalogue import ledger as counted
from lockstep_ledger.store import inbox
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.recount import differences
from lockstep_ledger.store.tables import dead_letters, events, jobs

_OPTIONS = ("--scrape-interval", "0s", "--max-rate", "100000", "--cluster", "bench")
_BATCH = 5


@dataclass
class Sender:
    """One node: delivers jobs to a ledger at random, each batch until it is answered."""

    node: str
    ports: list[int]
    pause_seconds: float
    sent: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    longest_seconds: float = 0.0
    retries: int = 0

    def run(self) -> None:
        """Ends after the job at which it is stopped."""
        number = 0
        dice = random.Random(self.node)
        with httpx.Client(timeout=5) as client:
            while not self.stop.is_set():
                batch = job_events(time.time() - 60, number, self.node)
                for first in range(0, len(batch), _BATCH):
                    self._deliver(client, batch[first : first + _BATCH], dice)
                number += 1
                time.sleep(self.pause_seconds)

    def _deliver(
        self, client: httpx.Client, batch: list[dict[str, object]], dice: random.Random
    ) -> None:
        message = {"version": 1, "cluster": "bench", "node": self.node, "events": batch}
        body, begin = json.dumps(message), time.perf_counter()
        while True:
            url = f"http://127.0.0.1:{dice.choice(self.ports)}/api/events"
            try:
                answer = client.post(
                    url, content=body, headers={"Content-Type": "application/json"}
                )
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.is_success:
                assert not answer.json()["rejected"], answer.text
                break
            self.retries += 1
            time.sleep(0.05)
        self.longest_seconds = max(self.longest_seconds, time.perf_counter() - begin)
        self.sent += [str(event["id"]) for event in batch]


@dataclass
class Scrapes:
    """What the leaders served: how often nobody or two did, and counters that fell."""

    falls: list[str] = field(default_factory=list)
    leaders: Counter[int] = field(default_factory=Counter)
    _values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)

    def leader(self, ledgers: list[LedgerProcess]) -> LedgerProcess | None:
        """The ledger that says that it leads."""
        found = None
        for ledger in ledgers:
            try:
                text = httpx.get(f"{ledger.url}/metrics", timeout=5).text
            except httpx.HTTPError:
                continue
            if f"\n{counted.LEADS.name} 1.0\n" in text:
                self._compare(text)
                self.leaders[ledger.port] += 1
                found = ledger
        return found

    def _compare(self, text: str) -> None:
        stored = {metric.name.removesuffix("_total") for metric in counted.COUNTED}
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name in stored else ():
                key = (sample.name, tuple(sorted(sample.labels.items())))
                if sample.value < self._values.get(key, 0.0):
                    self.falls.append(f"{key}: {self._values[key]} -> {sample.value}")
                self._values[key] = sample.value


def run(options: argparse.Namespace, dsn: str) -> bool:
    """Runs the kills and prints what came out."""
    ledgers = [LedgerProcess(dsn, _OPTIONS).start() for _ in range(2)]
    ports = [ledger.port for ledger in ledgers]
    senders = [Sender(f"n{number}", ports, options.pause) for number in range(options.senders)]
    threads = [threading.Thread(target=sender.run) for sender in senders]
    for thread in threads:
        thread.start()
    try:
        scrapes, gaps = kill_leaders(options, ledgers)
    finally:
        for sender in senders:
            sender.stop.set()
        for thread in threads:
            thread.join()
    engine = open_store(dsn, read_only=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        scrapes.leader(ledgers)
        with engine.connect() as connection:
            if inbox.count(connection) == 0:
                break
        time.sleep(0.2)
    for ledger in ledgers:
        ledger.stop()
    return report(dsn, senders, scrapes, gaps)


def kill_leaders(
    options: argparse.Namespace, ledgers: list[LedgerProcess]
) -> tuple[Scrapes, list[float]]:
    """Kills the leader at random moments; returns the seconds until the other one led."""
    dice, scrapes = random.Random(options.seed), Scrapes()
    gaps: list[float] = []
    restart: Future[LedgerProcess] | None = None
    killed_seconds = None
    with ThreadPoolExecutor(1) as pool:
        while len(gaps) < options.kills:
            leader = scrapes.leader(ledgers)
            if leader is None:
                time.sleep(0.02)
                continue
            if killed_seconds is not None:
                gaps.append(time.monotonic() - killed_seconds)
                killed_seconds = None
            if restart is not None and not restart.done():
                time.sleep(0.1)  # nobody would be left to lead
                continue
            time.sleep(dice.uniform(0, options.wait))
            leader.kill()
            killed_seconds = time.monotonic()
            restart = pool.submit(leader.start)
    return scrapes, gaps


def report(dsn: str, senders: list[Sender], scrapes: Scrapes, gaps: list[float]) -> bool:
    """Prints the table; whether nothing is lost and nothing is there twice."""
    engine = open_store(dsn, read_only=True)
    with engine.connect() as connection:
        stored = Counter(connection.execute(select(events.c.id)).scalars())
        outcomes = Counter(connection.execute(select(jobs.c.outcome)).scalars())
        letters = connection.execute(select(dead_letters.c.reason)).scalars().all()
        waiting = inbox.count(connection)
    sent = Counter(event for sender in senders for event in sender.sent)
    gaps.sort()
    findings = {
        "leaders killed": len(gaps),
        "seconds until the other leads, median": round(gaps[len(gaps) // 2], 1),
        "seconds until the other leads, longest": round(gaps[-1], 1),
        "events answered": sent.total(),
        "deliveries sent again": sum(sender.retries for sender in senders),
        "longest wait of a sender, seconds": round(max(s.longest_seconds for s in senders), 1),
        "events lost": len(sent - stored),
        "events stored twice, or that nobody sent": len(stored - sent),
        "jobs by outcome": dict(outcomes),
        "dead letters, deliveries left in the inbox": (len(letters), waiting),
        "counters and outcomes that differ from the recount": len(differences(engine)),
        "scrapes of a leader, by its port": dict(scrapes.leaders),
        "counters that fell from one leader to the next": len(scrapes.falls),
    }
    print("\n".join(f"| {name} | {value} |" for name, value in findings.items()), flush=True)
    for line in (*scrapes.falls[:5], *letters[:5], *differences(engine)[:5]):
        print(line, file=sys.stderr)
    zeros = ("events lost", "events stored twice, or that nobody sent",
             "counters and outcomes that differ from the recount",
             "counters that fell from one leader to the next")  # fmt: skip
    return not (any(findings[name] for name in zeros) or letters or waiting)


def main() -> None:
    """Exit status 1 where something is lost or counted twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="postgresql://...; a server of its own when left out")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--senders", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between jobs of a sender")
    parser.add_argument("--wait", type=float, default=1.0, help="longest life of a leader, seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.store:
        sys.exit(not run(options, options.store))
    with postgres_server("") as server:
        sys.exit(not run(options, server.dsn))


if __name__ == "__main__":
    main()
