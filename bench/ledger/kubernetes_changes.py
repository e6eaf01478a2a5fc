"""What a change costs the feed of Kubernetes itself, without a server and a ledger.

``python bench/ledger/kubernetes_changes.py [--jobs 2000] [--pods 8] [--changes 3000]``
"""

import argparse
import sys
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from lockstep_ledger.feeds.kubernetes.follower import Change
from lockstep_ledger.feeds.kubernetes.kinds import PODS, Kind
from lockstep_ledger.feeds.kubernetes.story import Storyteller
from lockstep_ledger.feeds.kubernetes.world import World

JOBS = Kind("batch", "v1", "Job", "jobs")
BATCH = 13  # changes of a tick of 0.25 s at 50 a second
BEGIN = 1_795_000_000.0


def moment(seconds: float) -> str:
    """A time after the begin, as the server writes it."""
    return datetime.fromtimestamp(BEGIN + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta(name: str, **more: Any) -> dict[str, Any]:
    """Metadata; the uid is the name."""
    created = {"namespace": "ns", "creationTimestamp": moment(0)}
    return {"uid": name, "name": name, **created, **more}


def describe_pod(job: str, number: int, *, is_over: bool) -> bytes:
    """A pod as JSON, with labels, an annotation of 1.5 kB and 30 variables."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}
    labels = {f"label-{index}": "value" for index in range(8)}
    main = {
        "name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "env": [{"name": f"V{index}", "value": "x" * 20} for index in range(30)],
    }  # fmt: skip
    state: dict[str, Any] = {"running": {"startedAt": moment(5)}}
    if is_over:
        ended = {"startedAt": moment(5), "finishedAt": moment(500), "exitCode": 0}
        state = {"terminated": ended}
    status = {
        "phase": "Succeeded" if is_over else "Running",
        "containerStatuses": [{"name": "main", "restartCount": 0, "state": state}],
    }
    owned = {"ownerReferences": [owner], "labels": labels, "annotations": {"a": "z" * 1500}}
    return msgspec.json.encode({
        "metadata": meta(f"{job}-{number}", **owned), "status": status,
        "spec": {"nodeName": "n1", "containers": [main]},
    })  # fmt: skip


def evaluate(world: World, teller: Storyteller, seconds: float) -> int:
    """Evaluate what has changed, as the feed does at each tick; the number of events."""
    events: list[bytes] = []
    for job in world.collect(BEGIN + seconds, lambda _: False):
        job.job_id, job.is_seeded = job.name, True
        events += map(msgspec.json.encode, teller.new_events(job, BEGIN + seconds))
    return len(events)


def main() -> None:
    """Print what the first lists and what the changes cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=8)
    parser.add_argument("--changes", type=int, default=3000)
    options = parser.parse_args()
    world, teller, begin = World({}), Storyteller("east"), time.process_time()
    for name in (f"job-{number}" for number in range(options.jobs)):
        world.apply(Change(JOBS, "", "seen", BEGIN + 6, {"metadata": meta(name)}))
        for number in range(options.pods):
            item = msgspec.json.decode(describe_pod(name, number, is_over=False))
            world.apply(Change(PODS, "", "seen", BEGIN + 6, item))
    num_events = evaluate(world, teller, 10)
    spent = time.process_time() - begin
    sys.stdout.write(f"first lists: {num_events} events, {spent:.2f} s of processor time\n")
    bodies = [
        describe_pod(f"job-{number % options.jobs}", number // options.jobs, is_over=True)
        for number in range(options.changes)
    ]
    begin, num_events = time.process_time(), 0
    for number, body in enumerate(bodies, 1):
        item = msgspec.json.decode(body)
        world.apply(Change(PODS, "", "seen", BEGIN + 501, item))
        if number % BATCH == 0:
            num_events += evaluate(world, teller, 501)
    num_events += evaluate(world, teller, 501)
    spent = time.process_time() - begin
    each = 1000 * spent / len(bodies)
    sys.stdout.write(
        f"{len(bodies)} changes: {num_events} events, {each:.2f} ms of processor time each\n"
    )


if __name__ == "__main__":
    main()
