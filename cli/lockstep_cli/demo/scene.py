"""Runs the demo: an agent, the servers and a training job, each a process of its own."""

import html
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lockstep_catalogue.windows import ScrapeWindows, spelled
from lockstep_cli.small_server import free_port
from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import Page, PageError, read_page, read_rows
from lockstep_records.text.durations import parse_duration
from lockstep_records.text.printable import printable

_CLEAN_WINDOWS = (1.2, 1.6)  # a healthy job is watched first
_FAULT_WINDOWS = 1.75  # the window, a scrape, and the three that a page may take besides
_DELIVERY_SECONDS = 15.0
_RECOVERY_SECONDS = 25.0  # beyond the live window, so that the page is resolved


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The job and its fault; ``rank`` is None in a healthy run."""

    ranks: int
    steps: int
    rank: int | None
    phase: str
    slow_ms: int
    from_step: int
    until_step: int

    @property
    def sentence(self) -> str:
        """The job and its fault in one line."""
        if self.rank is None:
            return f"{self.ranks} healthy ranks, {self.steps} steps"
        return (
            f"rank {self.rank} of {self.ranks} slowed by {self.slow_ms} ms in {self.phase}, "
            f"steps {self.from_step} to {self.until_step} of {self.steps}"
        )


def draw_script(
    chance: random.Random,
    step_seconds: float,
    ranks: int,
    fault: tuple[str, str],
    windows: ScrapeWindows,
) -> Script:
    """Draws rank and time; durations are in seconds, so that quick and slow machines agree.

    ``fault`` is ``one`` or ``none``, and the phase of the slow rank. The scrape interval gives a
    healthy window, a fault that lasts until the page has come, and a window in which it is
    resolved.
    """
    slow, phase = fault
    slow_seconds = max(0.05, 1.2 * step_seconds)
    clean_seconds = windows.live_seconds * chance.uniform(*_CLEAN_WINDOWS)
    fault_seconds = windows.live_seconds * _FAULT_WINDOWS + _DELIVERY_SECONDS
    from_step = int(clean_seconds / step_seconds)
    until_step = from_step + int(fault_seconds / (step_seconds + slow_seconds))
    rank = chance.randrange(ranks) if slow == "one" else None
    return Script(
        ranks=ranks,
        steps=until_step + int((windows.live_seconds + _RECOVERY_SECONDS) / step_seconds),
        rank=rank,
        phase=phase,
        slow_ms=round(slow_seconds * 1e3),
        from_step=from_step,
        until_step=until_step,
    )


def fault_flags(script: Script) -> tuple[str, ...]:
    """The trainer's flags that make the fault; none in a healthy run."""
    if script.rank is None:
        return ()
    words = (
        f"rank={script.rank}",
        f"step={script.from_step}",
        f"until={script.until_step}",
        f"delay={script.slow_ms}ms",
    )
    return "--fault", f"slow-{script.phase}:{','.join(words)}"


_PHASE_OF_FAULT = {"loader": "data"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """The injected fault: the slow rank, or None, its phase, and its time on the wall clock."""

    rank: int | None
    phase: str
    from_wall_seconds: float
    until_wall_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedPage:
    """One notification that reached the pager."""

    status: str
    alert: str
    rank: str
    phase: str
    wall_seconds: float
    summary: str
    notified_within_seconds: float

    @property
    def sentence(self) -> str:
        """The page in one line."""
        return f"[{self.status}] {self.alert}: {self.summary}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """Pages, verdict, and the headline of the HTML report."""

    pages: tuple[ReceivedPage, ...]
    verdict: dict[str, Any]
    headline: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One expectation, and whether it holds."""

    holds: bool
    sentence: str


def read_claims(out: Path, job_id: str) -> Claims:
    """Every claim about a job, from the files of pager and report."""
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    page = (out / "report.html").read_text(encoding="utf-8")
    headline = re.search(r"<h1[^>]*>(?:<span.*?</span>)?(.*?)</h1>", page, re.DOTALL)
    return Claims(
        pages=tuple(read_pages(out, job_id)),
        verdict=report["verdict"],
        headline=html.unescape(headline[1]).strip() if headline else "",
    )


def read_pages(out: Path, job_id: str) -> list[ReceivedPage]:
    """Pages of a job, in the order of arrival."""
    path = out / "stack" / "pages.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        _received_page(notification, alert)
        for notification in map(json.loads, lines)
        if notification["receiver"] == "pager"
        for alert in notification["alerts"]
        if alert["labels"].get("job_id") == job_id
    ]


def _received_page(notification: dict[str, Any], alert: dict[str, Any]) -> ReceivedPage:
    labels = alert["labels"]
    return ReceivedPage(
        status=alert["status"],
        alert=labels["alertname"],
        rank=labels.get("rank", ""),
        phase=labels.get("phase", ""),
        wall_seconds=datetime.fromisoformat(notification["time"]).timestamp(),
        summary=alert["annotations"].get("summary", ""),
        notified_within_seconds=parse_duration(alert["annotations"]["notified_within"]),
    )


def judge(truth: Truth, claims: Claims) -> list[Finding]:
    """The expectations that follow from the injected fault, held against the claims."""
    return _judge_nobody(claims) if truth.rank is None else _judge_one_rank(truth, claims)


def _judge_nobody(claims: Claims) -> list[Finding]:
    return [
        Finding(holds=not claims.pages, sentence=f"{len(claims.pages)} pages, 0 expected"),
        Finding(
            holds=claims.verdict["kind"] == "nobody",
            sentence=f"verdict is {claims.verdict['kind']}, nobody expected",
        ),
        Finding(
            holds="nobody" in claims.headline.lower() or "no rank" in claims.headline.lower(),
            sentence=f"the report's headline: {claims.headline}",
        ),
    ]


def _judge_one_rank(truth: Truth, claims: Claims) -> list[Finding]:
    phase = _PHASE_OF_FAULT.get(truth.phase, truth.phase)
    right = [p for p in claims.pages if p.rank == str(truth.rank) and p.phase == phase]
    firing = [p for p in right if p.status == "firing"]
    resolved = [p for p in right if p.status == "resolved"]
    delay = firing[0].wall_seconds - truth.from_wall_seconds if firing else float("inf")
    after = resolved[-1].wall_seconds - truth.until_wall_seconds if resolved else float("nan")
    within_seconds = firing[0].notified_within_seconds if firing else 0.0
    verdict = claims.verdict
    return [
        Finding(
            holds=0 <= delay <= within_seconds,
            sentence=f"page names rank {truth.rank} and {phase}, {delay:.0f} s after the slowdown "
            f"began (at most {within_seconds:.0f} s)",
        ),
        Finding(
            holds=bool(resolved) and after > 0,
            sentence=f"resolved {after:.0f} s after recovery",
        ),
        Finding(
            holds=len(firing) == 1 and len(right) == len(claims.pages),
            sentence=f"paged {len(firing)} times, once expected; "
            f"{len(claims.pages) - len(right)} other pages, 0 expected",
        ),
        Finding(
            holds=verdict["kind"] == "rank"
            and verdict["ranks"] == [truth.rank]
            and verdict["phase"] == phase,
            sentence=f"verdict names {verdict['ranks']} and {verdict['phase']}",
        ),
        Finding(
            holds=f"rank {truth.rank} " in claims.headline.lower() and phase in claims.headline,
            sentence=f"the report's headline: {claims.headline}",
        ),
    ]


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
        if event not in self._printed:
            self._printed.add(event)
            self._say(f"{time.monotonic() - self._began:4.0f} s  {event}")

    def _log(self, name: str) -> IO[bytes]:
        return self._open.enter_context((self._out / f"{name}.log").open("wb"))

    def _lockstep(self, *arguments: str, log: str) -> None:
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
        agent = f"127.0.0.1:{free_port()}"
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
