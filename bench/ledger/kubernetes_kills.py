"""Kills the feed at random while jobs come and go; the records are those of an undisturbed feed.

    python bench/ledger/kubernetes_kills.py LAB_FOLDER [--jobs 200 --kills 50 --seed 1]

Two feeds follow the same server into two ledgers: one is killed, the other is left alone. The
lab is started and stopped here; status 1 where a record differs.
"""

import argparse
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from ledger.kubernetes_situations.kubelets import ControlPlane
from ledger.kubernetes_situations.manifests import job
from ledger.kubernetes_situations.stage import Stage, close_lab, open_lab

RETRIED_RATIO = 0.2
COMPARED = (
    "status", "outcome", "failure_class", "cause", "attempts", "requeues", "submitted", "started",
    "ended", "queue_wait_seconds", "gpu_seconds", "project", "queue", "name", "gpus",
)  # fmt: skip


def submit(cluster: ControlPlane, number: int, chance: random.Random) -> None:
    """Submit a job of some length, outcome and number of pods; it is cleaned up in time."""
    name, seconds = f"kills-{number:03d}", chance.choice([1, 2, 4, 8])
    exit_code = chance.choice([0, 0, 0, 1, 139])
    lab = {"exit-code": exit_code}
    more: dict[str, Any] = {"backoffLimit": 1} if chance.random() < RETRIED_RATIO else {}
    pods = chance.choice([1, 1, 2])
    cluster.apply(
        job(name, 1, pods=pods, run=seconds, lab=lab, ttlSecondsAfterFinished=100, **more)
    )


def compare(left: Stage, right: Stage) -> list[str]:
    """Where the records of two ledgers differ."""
    findings = []
    found, expected = ({each["job_id"]: each for each in stage.jobs()} for stage in (left, right))
    for job_id in sorted(found.keys() | expected.keys()):
        if job_id not in found or job_id not in expected:
            findings.append(f"{job_id} is in one ledger alone")
            continue
        pair = [
            stage.read(f"/api/jobs/{job_id.replace('/', '%2F')}?cluster=east")
            for stage in (left, right)
        ]
        for name in COMPARED:
            values = [each.get(name) for each in pair]
            if values[0] != values[1]:
                findings.append(f"{job_id}: {name} {values[0]} and not {values[1]}")
    return findings


def wait_for_ends(stage: Stage) -> None:
    """Wait until a ledger holds no job open."""
    stage.until(
        lambda: all(each["status"] == "finished" for each in stage.jobs()), "all have ended", 180
    )


def run(folder: Path, options: argparse.Namespace) -> list[str]:
    """Submit jobs while the feed is killed; the differences."""
    chance = random.Random(options.seed)
    killed = Stage(folder, work_name="killed").open()
    quiet = Stage(folder, work_name="quiet").open()
    cluster = ControlPlane(folder, f"kills-{time.monotonic_ns() // 10**6 % 10**6}")
    stop = threading.Event()
    kills = [0]

    def kill() -> None:
        while not stop.is_set() and kills[0] < options.kills:
            stop.wait(chance.uniform(0.0, options.longest))
            killed.programs["feed"].end(signal.SIGKILL)
            kills[0] += 1
            killed.start("feed")

    try:
        killer = threading.Thread(target=kill)
        killer.start()
        begin = time.monotonic()
        for number in range(options.jobs):
            submit(cluster, number, random.Random(options.seed * 1000 + number))
            time.sleep(options.pause)
        killer.join(600)
        stop.set()
        for stage in (killed, quiet):
            wait_for_ends(stage)
        sys.stdout.write(
            f"{kills[0]} kills, {len(quiet.jobs())} jobs, {time.monotonic() - begin:.0f} s\n"
        )
        return compare(killed, quiet)
    finally:
        stop.set()
        cluster.close()
        killed.close()
        quiet.close()


def main() -> int:
    """Start a lab, run, stop it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=lambda text: Path(text).absolute())
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=1.6, help="seconds between jobs")
    parser.add_argument("--longest", type=float, default=5.0, help="most seconds that a feed lives")
    options = parser.parse_args()
    open_lab(options.folder)
    try:
        findings = run(options.folder, options)
    finally:
        close_lab(options.folder)
    sys.stdout.write("\n".join([*findings, f"{len(findings)} differences"]) + "\n")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
