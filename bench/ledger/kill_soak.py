"""Kills the ledger, agents and launchers at random moments while 1,000 jobs report, and counts.

Real agents on two nodes, each with a folder of its own, deliver what the launchers write. The
longest sign of a lie is looked for too: a counter that falls between two scrapes.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ledger"))

from model.stored import differences  # type: ignore[import-not-found]  # a module of the tests
from service import LedgerProcess  # type: ignore[import-not-found]  # a module of the tests
from soak_launcher import planned_end

from lockstep_catalogue import ledger as counted
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import dead_letters, events, jobs
from lockstep_records.events.event import read_events
from lockstep_records.files.jobs import list_jobs

_BENCH = Path(__file__).parent


@dataclass
class Watch:
    """Scrapes the ledger again and again; a counter that falls is noted."""

    url: str
    falls: list[str] = field(default_factory=list)
    scrapes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    _values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)

    def run(self) -> None:
        """Until it is stopped."""
        stored = {metric.name.removesuffix("_total") for metric in counted.COUNTED}
        while not self.stop.wait(0.5):
            try:
                text = httpx.get(f"{self.url}/metrics", timeout=5).text
            except httpx.HTTPError:
                continue
            self.scrapes += 1
            for family in text_string_to_metric_families(text):
                for sample in family.samples if family.name in stored else ():
                    key = (sample.name, tuple(sorted(sample.labels.items())))
                    if sample.value < self._values.get(key, 0.0):
                        self.falls.append(f"{key}: {self._values[key]} -> {sample.value}")
                    self._values[key] = sample.value


class Fleet:
    """Every process of the soak, by name."""

    def __init__(self, store: str, folder: Path, options: argparse.Namespace) -> None:
        waits = ("--scrape-interval", "0s", "--max-rate", "100000")
        self.ledger = LedgerProcess(store, waits).start()
        self.roots = [folder / name for name in ("n0", "n1")]
        for root in self.roots:
            (root / "jobs").mkdir(parents=True)
        self._folder = folder
        share = options.jobs // options.launchers
        rate = options.rate / options.launchers
        self.commands = {
            **{f"agent {root.name}": self._agent(root) for root in self.roots},
            **{
                f"launcher {n}": [
                    sys.executable, str(_BENCH / "soak_launcher.py"), str(n * share),
                    str((n + 1) * share), str(rate), *map(str, self.roots),
                ]
                for n in range(options.launchers)
            },
        }  # fmt: skip
        self.processes = {name: self._start(name) for name in self.commands}

    def _agent(self, root: Path) -> list[str]:
        state = self._folder / f"state-{root.name}"
        state.mkdir()
        return [
            sys.executable, "-m", "lockstep_cli.main", "agent", "--listen", "127.0.0.1:0",
            "--dir", str(root), "--node", root.name, "--cluster", "soak", "--state", str(state),
            "--ledger", f"{self.ledger.url}/api/events", "--tick", "250ms",
        ]  # fmt: skip

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        log = (self._folder / "processes.log").open("ab")
        with log:
            return subprocess.Popen(self.commands[name], stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """Kills one of them by SIGKILL and starts it again."""
        if name == "ledger":
            self.ledger.kill()
            self.ledger.start()
            return
        self.processes[name].kill()
        self.processes[name].wait()
        self.processes[name] = self._start(name)

    def running_launchers(self) -> list[str]:
        """Launchers that still have something to write."""
        names = (name for name in self.processes if name.startswith("launcher"))
        return [name for name in names if self.processes[name].poll() is None]

    def end(self) -> None:
        """Ends everything."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.ledger.stop()


def soak(store: str, folder: Path, options: argparse.Namespace) -> bool:
    """Runs the soak; returns whether everything is as it should be."""
    fleet = Fleet(store, folder, options)
    watch = Watch(fleet.ledger.url)
    threading.Thread(target=watch.run, daemon=True).start()
    dice = random.Random(options.seed)
    kills: Counter[str] = Counter()
    try:
        while kills.total() < options.kills:
            time.sleep(dice.uniform(0, 2 * options.pause))
            launchers = fleet.running_launchers() or [n for n in fleet.commands if "laun" in n]
            agents = [name for name in fleet.commands if name.startswith("agent")]
            name = dice.choice(dice.choice([["ledger"], agents, launchers]))
            kills[name.partition(" ")[0]] += 1
            fleet.kill(name)
        print(f"killed {dict(kills)}; waiting for the end", file=sys.stderr, flush=True)
        _wait(fleet, options.jobs)
    finally:
        watch.stop.set()
        fleet.end()
    return check(store, fleet.roots, options.jobs, watch, kills)


def _wait(fleet: Fleet, num_jobs: int) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        time.sleep(1)
        pages = httpx.get(f"{fleet.ledger.url}/metrics", timeout=30).text
        name = counted.JOBS_FINISHED.name
        lines = [line for line in pages.splitlines() if line.startswith(name + "{")]
        finished = sum(float(line.rpartition(" ")[2]) for line in lines)
        if finished >= num_jobs and not fleet.running_launchers():
            return
    print("jobs are missing after five minutes", file=sys.stderr)


def check(store: str, roots: list[Path], num_jobs: int, watch: Watch, kills: Counter[str]) -> bool:
    """Prints what came out."""
    engine = open_store(store, read_only=True)
    with engine.connect() as connection:
        outcomes = dict(connection.execute(select(jobs.c.job_id, jobs.c.outcome)).all())
        num_rows = len(connection.execute(select(jobs.c.number)).all())
        stored = Counter(connection.execute(select(events.c.id)).scalars())
        letters = connection.execute(select(dead_letters.c.reason)).scalars().all()
    written = [e.id for root in roots for job in list_jobs(root) for e in read_events(job)]
    wrong = {j: o for j, o in outcomes.items() if o != planned_end(j)[0]}
    findings = {
        "kills": dict(kills),
        "jobs": f"{num_rows} rows, {len(outcomes)} ids of {num_jobs}",
        "wrong outcomes": len(wrong),
        "events written": len(written),
        "events missing": len(set(written) - stored.keys()),
        "events stored twice": sum(count > 1 for count in stored.values()),
        "dead letters": len(letters),
        "counters that differ from the model": len(differences(engine)),
        "scrapes": watch.scrapes,
        "counters that fell": len(watch.falls),
    }
    for name, value in findings.items():
        print(f"| {name} | {value} |")
    for line in (
        *list(wrong.items())[:5],
        *letters[:5],
        *differences(engine)[:5],
        *watch.falls[:5],
    ):
        print(line, file=sys.stderr)
    zeros = ("wrong outcomes", "events missing", "events stored twice", "dead letters",
             "counters that differ from the model", "counters that fell")  # fmt: skip
    return num_rows == num_jobs and not any(findings[name] for name in zeros)


def main() -> None:
    """Runs the soak; exit status 1 when something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="postgresql://...; an SQLite file when left out")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--launchers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=100.0, help="events a second of all")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:  # jobs lie on a tmpfs
        folder = Path(shared)
        store = options.store or str(folder / "ledger.db")
        sys.exit(not soak(store, folder, options))


if __name__ == "__main__":
    main()
