"""Takes the ledger away while jobs report: what is lost, what comes in disorder, who waits.

Real agents on two nodes hold the events; the launchers' time to write an event is measured before
and during the absence.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import httpx
from sqlalchemy import select

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ledger"))

from kill_soak import Fleet
from model.stored import differences  # type: ignore[import-not-found]  # a module of the tests

from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import events, jobs
from lockstep_records.events.event import read_events
from lockstep_records.files.jobs import list_jobs
from lockstep_records.text.durations import parse_duration


def run(store: str, folder: Path, options: argparse.Namespace) -> None:
    """Prints the table."""
    fleet = Fleet(store, folder, options)
    try:
        time.sleep(30)
        fleet.ledger.kill()
        gone = time.time()
        time.sleep(options.away)
        back = time.time()
        fleet.ledger.start()
        while len(written(fleet)) > stored(fleet) or fleet.running_launchers():
            time.sleep(1)
            if time.time() - back > options.away + 300:
                break
        caught_up_seconds = time.time() - back
    finally:
        fleet.end()
    report(store, fleet, (gone, back), caught_up_seconds)


def written(fleet: Fleet) -> list[str]:
    """Ids of all events in the files of the nodes."""
    return [e.id for root in fleet.roots for job in list_jobs(root) for e in read_events(job)]


def stored(fleet: Fleet) -> int:
    """How many events the ledger holds."""
    text = httpx.get(f"{fleet.ledger.url}/metrics", timeout=30).text
    lines = [line for line in text.splitlines() if "events_stored " in line and line[0] != "#"]
    return int(float(lines[0].rpartition(" ")[2]))


def report(
    store: str, fleet: Fleet, absence: tuple[float, float], caught_up_seconds: float
) -> None:
    """Compares the files with the store."""
    engine = open_store(store, read_only=True)
    order: dict[tuple[str, str], list[str]] = defaultdict(list)
    with engine.connect() as connection:
        stored_events = select(jobs.c.job_id, events.c.node, events.c.id)
        joined = stored_events.join_from(events, jobs, events.c.job == jobs.c.number)
        for job_id, node, name in connection.execute(joined.order_by(events.c.sequence)):
            order[job_id, node].append(name)
    ids = written(fleet)
    disorder = 0
    for root in fleet.roots:
        for job in list_jobs(root):
            expected = [event.id for event in read_events(job)]
            disorder += order[job.name, root.name] != expected
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for root in fleet.roots:
        for line in (root / "append-seconds").read_text(encoding="utf-8").splitlines():
            moment, took = map(float, line.split())
            seconds[absence[0] <= moment < absence[1]].append(took)
    with engine.connect() as connection:
        outcomes = connection.execute(select(jobs.c.outcome)).scalars().all()
    findings = {
        "seconds away": round(absence[1] - absence[0]),
        "events written while away": len(seconds[True]),
        "events written": len(ids),
        "events lost": len(set(ids) - {event for events in order.values() for event in events}),
        "files whose order differs": disorder,
        "jobs without an outcome": sum(outcome is None for outcome in outcomes),
        "counters that differ from the model": len(differences(engine)),
        "seconds until all was delivered": round(caught_up_seconds, 1),
        "microseconds to write an event, median, ledger there": _median(seconds[False]),
        "microseconds to write an event, median, ledger away": _median(seconds[True]),
    }
    print("\n".join(f"| {name} | {value} |" for name, value in findings.items()))
    print(json.dumps(findings), file=sys.stderr)


def _median(seconds: list[float]) -> int:
    return round(statistics.median(seconds) * 1e6)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--away", type=parse_duration, default=600.0)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--launchers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=7.0, help="events a second of all launchers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:  # jobs lie on a tmpfs
        run(str(Path(shared) / "ledger.db"), Path(shared), options)


if __name__ == "__main__":
    main()
