"""One job on the asynchronous device under a real agent, Prometheus and pager: who is paged, when.

Usage: ``python bench/stragglers/async_live.py``. Four ranks are alike, then the device of one of
them is slow in a phase; the pages since then, with the seconds that they took to arrive.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp

import click
from async_bench import LAUNCH
from plan import Course, Trial
from runs import STRATEGIES, root_folder, train

from lockstep_cli.options import DurationRange
from lockstep_records.page.reader import read_page, read_rows

_LOCKSTEP = (sys.executable, "-m", "lockstep_cli.main")
_FORWARD_SECONDS, _RANK = 0.02, 2
_SETTLED_SECONDS = 90.0
_DEADLINE = "notified_within"
_PRINTED = ("severity", "rank", "node", "phase", _DEADLINE)


@contextlib.contextmanager
def _watched(root: Path, work: Path, interval: str) -> Iterator[Path]:
    """An agent for the pages, and the servers; the file of notifications."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = ("--listen", address, "--dir", str(root), "--node", "n1", "--cluster", "bench")
    more = ("--state", str(work / "state"), "--scrape-interval", interval)
    stack = ("--dir", str(work / "stack"))
    with (work / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [*_LOCKSTEP, "agent", *options, *more], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        up = (*_LOCKSTEP, "stack", "up", *stack, "--target", address, "--interval", interval)
        subprocess.run([*up, "--group-interval", "5s"], check=True)
        yield work / "stack" / "pages.jsonl"
    finally:
        subprocess.run([*_LOCKSTEP, "stack", "down", *stack], check=False)
        agent.terminate()
        agent.wait(30)


def _alerts(pages: Path) -> Iterator[tuple[float, dict[str, str]]]:
    """When each alert first arrived, and its labels with its deadline."""
    seen = set()
    for line in pages.read_text(encoding="utf-8").splitlines():
        notification = json.loads(line)
        for alert in notification["alerts"]:
            key = tuple(sorted(alert["labels"].items()))
            if key not in seen:
                seen.add(key)
                deadline = alert["annotations"].get(_DEADLINE, "unknown")
                arrived = datetime.fromisoformat(notification["time"]).timestamp()
                yield arrived, alert["labels"] | {_DEADLINE: deadline}


def _wall_begin(page_file: Path, step: int) -> float:
    """Wall clock at which the device began a step."""
    page = read_page(page_file)
    row = next(row for row in read_rows(page) if row["step"] == step)
    return page.wall_seconds(row["start_ns"])


def _run(
    strategy: str, phase: str, percent: int, seconds: tuple[float, float], interval: str
) -> tuple[float, list[tuple[float, dict[str, str]]]]:
    healthy_seconds, slow_seconds = seconds
    usual = Course((), 0, forward_seconds=_FORWARD_SECONDS).step_seconds_of(strategy, 4)
    start = round(healthy_seconds / usual)
    steps = round(slow_seconds / (usual * (1 + percent / 100)))
    trial = Trial(phase, percent, "steady", _RANK, start, steps)
    course = Course((trial,), start + steps, forward_seconds=_FORWARD_SECONDS)
    work = Path(mkdtemp(prefix="async-live-"))
    with root_folder() as root, _watched(root, work, interval) as pages:
        attempt = train(strategy, root, course, LAUNCH)
        threading.Event().wait(_SETTLED_SECONDS)  # pages may still be on their way
        begin = _wall_begin(attempt / "rank-00000.page", start)
        return begin, list(_alerts(pages))


@click.command()
@click.option("--strategy", default="ddp", show_default=True, type=click.Choice(STRATEGIES))
@click.option("--phase", default="backward", show_default=True, help="Where the device is slow.")
@click.option("--percent", default=100, show_default=True, help="By how much, of the step.")
@click.option("--healthy", type=DurationRange(), default="2m", show_default=True)
@click.option("--slow", type=DurationRange(), default="2m", show_default=True)
@click.option("--interval", default="5s", show_default=True, help="Scrape interval.")
def main(
    *, strategy: str, phase: str, percent: int, healthy: float, slow: float, interval: str
) -> None:
    """Print the alerts of a job whose device is slow in one rank."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave nothing behind
    begin, alerts = _run(strategy, phase, percent, (healthy, slow), interval)
    print(f"rank {_RANK}'s device is slow in {phase} by {percent} %; {strategy}, {interval}:")
    for arrived, labels in alerts:
        named = {name: labels[name] for name in _PRINTED if name in labels}
        print(f"  {arrived - begin:+.0f} s: {labels['alertname']} {named}")


if __name__ == "__main__":
    main()
