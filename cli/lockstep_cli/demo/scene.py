"""Runs the demo: an agent, the servers and a training job, each a process of its own."""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lockstep_catalogue.windows import ScrapeWindows, spelled
from lockstep_cli.demo.judge import Truth, read_pages
from lockstep_cli.demo.script import Script, fault_flags
from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import Page, PageError, read_page, read_rows
from lockstep_records.text.printable import printable

_WARM_UP_STEPS = 40
_RESOLVED_WITHIN_SCRAPES = 52  # the window, keep_firing_for, a group interval
_POLL_SECONDS = 0.25
_LOCKSTEP = (sys.executable, "-P", "-m", "lockstep_cli.main")


class Scene:
    """Everything that runs during the demo; leaving it stops all of it."""

    job_id = "demo"

    def __init__(self, *, out: Path, root: Path, windows: ScrapeWindows) -> None:
        self._out, self._root, self._windows = out, root, windows
        self._console = Console(stderr=True, highlight=False)
        self._began, self._printed = time.monotonic(), set[str]()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _print_event(self, event: str) -> None:
        """Prints an event once, with the seconds since the demo began."""
        if event not in self._printed:
            self._printed.add(event)
            self._say(f"{time.monotonic() - self._began:4.0f} s  {event}")

    def _log(self, name: str) -> IO[bytes]:
        return self._open.enter_context((self._out / f"{name}.log").open("wb"))

    def _lockstep(self, *arguments: str, log: str) -> None:
        """Runs a lockstep command to its end; its output goes to a log in the output folder."""
        ended = subprocess.run(
            [*_LOCKSTEP, *arguments],
            stdout=self._log(log),
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": str(self._console.width)},
            check=False,
        )
        if ended.returncode:
            output = (self._out / f"{log}.log").read_text(errors="replace").strip().splitlines()
            raise click.ClickException(
                f"lockstep {arguments[0]} ended with {ended.returncode}: {' '.join(output[-2:])}"
            )

    def _start(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        """Starts a lockstep command in the background; it ends with the scene."""
        process = subprocess.Popen(
            [*_LOCKSTEP, *arguments],
            stdout=self._log(log),
            stderr=subprocess.STDOUT,
            # By default a page needs a node's worth of GPUs, or this class.
            env={**os.environ, "LOCKSTEP_JOB_CLASS": "production"},
        )
        self._open.callback(_end, process)
        return process

    def _train(self, job_id: str, ranks: int, *arguments: str) -> tuple[str, ...]:
        job = ("--nproc-per-node", str(ranks), "--job-id", job_id, "--cluster", "demo")
        return ("train", *job, "--dir", str(self._root), *arguments)

    def step_seconds(self, ranks: int) -> float:
        """Median duration of a step on this machine, from a short run of the same job."""
        self._print_event(f"measures a step of {ranks} ranks on this machine")
        warm_up = self._train("warm-up", ranks, "--steps", str(_WARM_UP_STEPS))
        self._lockstep(*warm_up, log="warm-up")
        rows = read_rows(read_page(page_path(self._root, "warm-up", 0, 0)))
        return float(statistics.median(row["seconds"] for row in rows[_WARM_UP_STEPS // 4 :]))

    def play(self, script: Script) -> Truth:
        """Runs the job under agent and servers, then the report; returns the injected fault."""
        self._start_watching()
        arguments = (
            *("--steps", str(script.steps), *fault_flags(script)),
            *("--checkpoint-dir", str(self._out / "checkpoints")),
            *("--summary", str(self._out / "summary.json")),
        )
        job = self._start(*self._train(self.job_id, script.ranks, *arguments), log="train")
        self._follow(job, script)
        if job.wait() != 0:
            raise click.ClickException(f"the training job failed; see {self._out / 'train.log'}")
        truth = self._truth(script)
        self._conclude()
        if script.rank is not None:
            # What comes and goes is one incident: the page outlasts its cause by forty scrapes.
            within_seconds = _RESOLVED_WITHIN_SCRAPES * self._windows.scrape_seconds
            self._wait("the page's resolution", within_seconds, self._resolved)
        return truth

    def _start_watching(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            agent = f"127.0.0.1:{probe.getsockname()[1]}"
        interval = spelled(self._windows.scrape_seconds)
        self._start(
            *("agent", "--listen", agent, "--dir", str(self._root), "--cluster", "demo"),
            # The folder of a node's own agent is that agent's.
            *("--state", str(self._out / "agent-state"), "--scrape-interval", interval),
            log="agent",
        )
        stack = str(self._out / "stack")
        self._open.callback(self._lockstep, "stack", "down", "--dir", stack, log="down")
        self._lockstep(
            *("stack", "up", "--dir", stack, "--target", agent),
            *("--interval", interval, "--group-interval", "10s"),
            log="up",
        )
        self._print_event("agent, Prometheus, Alertmanager, pager and boards run")
        self._say((self._out / "up.log").read_text(errors="replace").rstrip())

    def _follow(self, job: subprocess.Popen[bytes], script: Script) -> None:
        """Shows the job's progress, and pages as they arrive, until it ends."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("step {task.completed:.0f} of {task.total:.0f}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(f"training on {script.ranks} ranks", total=script.steps)
            while job.poll() is None:
                page = self._page(0)
                if page is not None:
                    progress.update(task, completed=page.state["step"] or 0)
                self._print_events(script, page)
                time.sleep(_POLL_SECONDS)

    def _print_events(self, script: Script, page: Page | None) -> None:
        """Prints what has happened by now: training, the fault, alerts and pages."""
        step = -1 if page is None else page.state["step"] or -1
        if step > 0:
            watch = f"lockstep top {self._root / 'jobs' / self.job_id}"
            self._print_event(f"training began on {script.ranks} ranks; watch them: {watch}")
        if script.rank is not None and step >= script.from_step:
            self._print_event(f"fault injected: rank {script.rank} is slow in {script.phase}")
        if script.rank is not None and step >= script.until_step:
            self._print_event(f"fault removed: rank {script.rank} is quick again")
        for alert in self._pending():
            self._print_event(f"alert pending: {alert}")
        self._print_pages()

    def _print_pages(self) -> None:
        for received in read_pages(self._out, self.job_id):
            self._print_event(f"page: {printable(received.sentence)}")

    def _pending(self) -> list[str]:
        """Alerts of the job whose condition holds and that have not lasted for long enough yet."""
        from lockstep_prometheus.client import Prometheus  # noqa: PLC0415  # loads httpx

        query = f'ALERTS{{alertstate="pending",job_id="{self.job_id}"}}'
        try:
            with Prometheus(self._prometheus_url()) as prometheus:
                series = prometheus.instant(query, time.time())
        except ValueError:  # it is busy; the next look is soon
            return []
        return sorted({each.labels["alertname"] for each in series})

    def _page(self, rank: int) -> Page | None:
        try:
            return read_page(page_path(self._root, self.job_id, 0, rank))
        except PageError:
            return None

    def _truth(self, script: Script) -> Truth:
        """Begin and end of the slowdown, by the step rows of the slow rank."""
        page = read_page(page_path(self._root, self.job_id, 0, script.rank or 0))
        start_by_step = {row["step"]: page.wall_seconds(row["start_ns"]) for row in read_rows(page)}
        return Truth(
            rank=script.rank,
            phase=script.phase,
            from_wall_seconds=start_by_step[script.from_step],
            until_wall_seconds=start_by_step[script.until_step],
        )

    def _resolved(self) -> bool:
        self._print_pages()
        pages = read_pages(self._out, self.job_id)
        return any(page.status == "resolved" for page in pages)

    def _wait(self, what: str, seconds: float, has_come: Callable[[], bool]) -> None:
        """Waits for something that should come; the judge reports it when it does not."""
        deadline = time.monotonic() + seconds
        with self._console.status(f"waiting for {what} ..."):
            while time.monotonic() < deadline and not has_come():
                time.sleep(_POLL_SECONDS)

    def _conclude(self) -> None:
        """Copies the job's pages, writes the report, and runs every query of the boards."""
        job = self._root / "jobs" / self.job_id
        subprocess.run(
            ["cp", "-r", "--sparse=always", str(job), str(self._out / "job")], check=True
        )
        prometheus = self._prometheus_url()
        self._lockstep(
            *("report", str(self._out / "job"), "--signs-from", prometheus),
            *("--json", str(self._out / "report.json")),
            *("--html", str(self._out / "report.html")),
            *("--board", str(self._out / "snapshot.html")),
            log="report",
        )
        self._say((self._out / "report.log").read_text(errors="replace").rstrip())
        self._lockstep("dashboards", "generate", "--out", str(self._out / "boards"), log="boards")
        self._lockstep(
            *("dashboards", "check", "--board", "job", "--prometheus", prometheus),
            *("--job-id", self.job_id),
            log="boards-check",
        )

    def _prometheus_url(self) -> str:
        stack = json.loads((self._out / "stack" / "stack.json").read_text(encoding="utf-8"))
        return str(stack["prometheus"]["url"])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
