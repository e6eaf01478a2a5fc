"""Five jobs under real agents, Prometheus and pager: who is paged, and who is not.

``make bench-live-groups``. Two agents stand for two nodes; each job has two ranks on each. All jobs
are healthy at first, then one rank of each is slow, then all ranks of a node of two of them.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp

from live_jobs import JOBS, RANKS_A_NODE, SMALL, Job
from notifications import Moment, read_alerts, table

from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import PageError, read_page, read_rows
from lockstep_records.text.durations import parse_duration

LOCKSTEP = (sys.executable, "-m", "lockstep_cli.main")
NODES = ("n1", "n2")
SHOW_EVERY_SECONDS = 30.0
SETTLED_SECONDS = 120.0  # pages of the last stretch may still be on their way


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def program(log: Path, *command: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A program in the background; it ends with the block."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_watching(work: Path, root: Path, interval: str, open_: ExitStack) -> None:
    """Two agents, each with the pages of its node, and the servers that scrape them."""
    targets = []
    for node in NODES:
        address = f"127.0.0.1:{free_port()}"
        targets += ["--target", address]
        options = ("--listen", address, "--dir", str(root / node), "--node", node)
        state = ("--state", str(work / f"state-{node}"), "--scrape-interval", interval)
        command = (*LOCKSTEP, "agent", *options, *state, "--cluster", "bench")
        open_.enter_context(program(work / f"agent-{node}.log", *command))
    stack = ("--dir", str(work / "stack"))
    up = (*LOCKSTEP, "stack", "up", *stack, *targets, "--interval", interval)
    subprocess.run([*up, "--group-interval", "10s"], check=True)
    open_.callback(subprocess.run, [*LOCKSTEP, "stack", "down", *stack], check=False)


def start_job(
    job: Job, work: Path, root: Path, healthy_seconds: float, open_: ExitStack
) -> list["subprocess.Popen[bytes]"]:
    """The two launchers of a job, one a node."""
    steps = max(end for _, end in job.stretches(healthy_seconds).values()) + 20
    endpoint = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    launchers = []
    for rank, node in enumerate(NODES):
        shape = ("--nnodes", "2", "--nproc-per-node", str(RANKS_A_NODE), "--node-rank", str(rank))
        of_job = ("--job-id", job.name, "--cluster", "bench", "--dir", str(root / node))
        command = (*LOCKSTEP, "train", *shape, "--rdzv-backend", "static", *endpoint, *of_job)
        flags = (*SMALL, *job.flags, "--steps", str(steps), "--eval-every", str(steps))
        log = work / f"{job.name}-{node}.log"
        full = (*command, *flags, *job.faults(healthy_seconds))
        launchers.append(open_.enter_context(program(log, *full, LOCKSTEP_NODE=node)))
    return launchers


def last_step(job: Job, root: Path) -> int:
    """Newest step of the job's first rank; 0 before the first."""
    try:
        return int(read_page(page_path(root / NODES[0], job.name, 0, 0)).state["step"] or 0)
    except PageError:
        return 0


def follow(
    jobs: Sequence[Job], launchers: dict[str, list["subprocess.Popen[bytes]"]], root: Path
) -> None:
    """Prints the jobs' progress until all have ended."""
    started = time.monotonic()
    while any(process.poll() is None for group in launchers.values() for process in group):
        time.sleep(SHOW_EVERY_SECONDS)
        steps = ", ".join(f"{job.name} {last_step(job, root)}" for job in jobs)
        print(f"{(time.monotonic() - started) / 60:5.1f} min: steps {steps}", flush=True)


def moments_of(job: Job, root: Path, healthy_seconds: float) -> dict[str, Moment]:
    """When each stretch of a job began and ended on the wall clock, by the rows of its rank 0."""
    page = read_page(page_path(root / NODES[0], job.name, 0, 0))
    begins = {row["step"]: page.wall_seconds(row["start_ns"]) for row in read_rows(page)}
    return {
        name: Moment(begins[begin], begins[end])
        for name, (begin, end) in job.stretches(healthy_seconds).items()
    }


def main() -> None:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--healthy", type=parse_duration, default=600.0)
    parser.add_argument("--interval", default="15s")
    parser.add_argument("--work", type=Path, default=None)
    names = [job.name for job in JOBS]
    parser.add_argument("--job", action="append", choices=names, help="only this; repeatable")
    options = parser.parse_args()
    jobs = [job for job in JOBS if job.name in (options.job or names)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave nothing behind
    work = options.work or Path(mkdtemp(prefix="live-groups-"))
    work.mkdir(parents=True, exist_ok=True)
    root = Path(mkdtemp(prefix="live-groups-", dir="/dev/shm"))
    print(f"work in {work}, pages in {root}", flush=True)
    with ExitStack() as open_:
        open_.callback(subprocess.run, ["rm", "-rf", str(root)], check=False)
        start_watching(work, root, options.interval, open_)
        launchers = {job.name: start_job(job, work, root, options.healthy, open_) for job in jobs}
        follow(jobs, launchers, root)
        statuses = {name: [p.wait() for p in group] for name, group in launchers.items()}
        print(f"exit statuses {statuses}", flush=True)
        time.sleep(SETTLED_SECONDS)
        moments = {job.name: moments_of(job, root, options.healthy) for job in jobs}
        (work / "moments.json").write_text(json.dumps(moments, default=asdict), encoding="utf-8")
        lines = (work / "stack" / "pages.jsonl").read_text(encoding="utf-8").splitlines()
        print(table(jobs, moments, read_alerts(lines)), flush=True)


if __name__ == "__main__":
    main()
