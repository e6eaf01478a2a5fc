"""Runs the demo: an agent and a training job on the stage of the game day."""

import html
import json
import random
import re
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lockstep_catalogue.windows import ScrapeWindows, spelled
from lockstep_cli.gameday.stage import Stage, read_notifications
from lockstep_cli.small_server import free_port
from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import PageError, read_page, read_rows
from lockstep_records.text.durations import parse_duration
from lockstep_records.text.printable import printable

JOB = "demo"
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


def read_claims(out: Path) -> Claims:
    """Every claim about the job, from the files of pager and report."""
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    page = (out / "report.html").read_text(encoding="utf-8")
    headline = re.search(r"<h1[^>]*>(?:<span.*?</span>)?(.*?)</h1>", page, re.DOTALL)
    return Claims(
        pages=tuple(read_pages(out)),
        verdict=report["verdict"],
        headline=html.unescape(headline[1]).strip() if headline else "",
    )


def read_pages(out: Path) -> list[ReceivedPage]:
    """Pages of the job, in the order of arrival."""
    return [
        ReceivedPage(
            status=alert["status"],
            alert=alert["labels"]["alertname"],
            rank=alert["labels"].get("rank", ""),
            phase=alert["labels"].get("phase", ""),
            wall_seconds=each.wall_seconds,
            summary=alert["annotations"].get("summary", ""),
            notified_within_seconds=parse_duration(alert["annotations"]["notified_within"]),
        )
        for each in read_notifications(out)
        for alert in each.alerts
        if each.receiver == "pager" and alert["labels"].get("job_id") == JOB
    ]


def judge(truth: Truth, claims: Claims) -> dict[str, bool]:
    """Whether the expectations that follow from the injected fault hold, by what was claimed."""
    return _judge_nobody(claims) if truth.rank is None else _judge_one_rank(truth, claims)


def _judge_nobody(claims: Claims) -> dict[str, bool]:
    kind, headline = claims.verdict["kind"], claims.headline.lower()
    return {
        f"{len(claims.pages)} pages, 0 expected": not claims.pages,
        f"verdict is {kind}, nobody expected": kind == "nobody",
        f"the report's headline: {claims.headline}": "nobody" in headline or "no rank" in headline,
    }


def _judge_one_rank(truth: Truth, claims: Claims) -> dict[str, bool]:
    phase = _PHASE_OF_FAULT.get(truth.phase, truth.phase)
    right = [p for p in claims.pages if p.rank == str(truth.rank) and p.phase == phase]
    firing = [p for p in right if p.status == "firing"]
    resolved = [p for p in right if p.status == "resolved"]
    delay = firing[0].wall_seconds - truth.from_wall_seconds if firing else float("inf")
    after = resolved[-1].wall_seconds - truth.until_wall_seconds if resolved else float("nan")
    within_seconds = firing[0].notified_within_seconds if firing else 0.0
    verdict, num_other = claims.verdict, len(claims.pages) - len(right)
    found = (verdict["kind"], verdict["ranks"], verdict["phase"])
    return {
        f"page names rank {truth.rank} and {phase}, {delay:.0f} s after the slowdown began "
        f"(at most {within_seconds:.0f} s)": 0 <= delay <= within_seconds,
        f"resolved {after:.0f} s after recovery": after > 0,
        f"paged {len(firing)} times, once expected; {num_other} other pages, 0 expected": (
            len(firing) == 1 and not num_other
        ),
        f"verdict names {verdict['ranks']} and {verdict['phase']}": (
            found == ("rank", [truth.rank], phase)
        ),
        f"the report's headline: {claims.headline}": (
            f"rank {truth.rank} " in claims.headline.lower() and phase in claims.headline
        ),
    }


_WARM_UP_STEPS = 40
_RESOLVED_WITHIN_SCRAPES = 52  # the window, keep_firing_for, a group interval


class Scene:
    """The job of the demo on a stage, under an agent."""

    def __init__(self, stage: Stage, windows: ScrapeWindows) -> None:
        self._stage, self._windows = stage, windows
        self._out, self._root = stage.folder, stage.memory
        self._console = Console(stderr=True, highlight=False)
        self._began, self._printed = time.monotonic(), set[str]()

    def _say(self, text: str) -> None:
        self._console.print(text.rstrip(), markup=False, soft_wrap=True)

    def _print_event(self, event: str) -> None:
        if event not in self._printed:
            self._printed.add(event)
            self._say(f"{time.monotonic() - self._began:4.0f} s  {event}")

    def _train(self, job_id: str, ranks: int, *arguments: str) -> tuple[str, ...]:
        job = ("--nproc-per-node", str(ranks), "--job-id", job_id, "--cluster", "demo")
        return ("train", *job, "--dir", str(self._root), *arguments)

    def step_seconds(self, ranks: int) -> float:
        """Median duration of a step on this machine, from a short run of the same job."""
        self._print_event(f"measures a step of {ranks} ranks on this machine")
        self._stage.lockstep(*self._train("warm-up", ranks, "--steps", str(_WARM_UP_STEPS)))
        rows = read_rows(read_page(page_path(self._root, "warm-up", 0, 0)))
        return float(statistics.median(row["seconds"] for row in rows[_WARM_UP_STEPS // 4 :]))

    def play(self, script: Script) -> Truth:
        """Runs the job under agent and servers, then the report; returns the injected fault."""
        self._start_agent()
        arguments = (
            *("--steps", str(script.steps), *fault_flags(script)),
            *("--checkpoint-dir", str(self._out / "checkpoints")),
            *("--summary", str(self._out / "summary.json")),
        )
        words = self._train(JOB, script.ranks, *arguments)
        # By default a page needs a node's worth of GPUs, or this class.
        job = self._stage.start("train", *words, LOCKSTEP_JOB_CLASS="production")
        self._follow(job, script)
        if job.wait() != 0:
            raise click.ClickException(f"the training job failed; see {self._out / 'train.log'}")
        truth = self._truth(script)
        self._conclude()
        if script.rank is not None:
            # What comes and goes is one incident: the page outlasts its cause by forty scrapes.
            within_seconds = _RESOLVED_WITHIN_SCRAPES * self._windows.scrape_seconds
            with self._console.status("waiting for the page's resolution ..."):
                self._stage.wait(within_seconds, self._resolved)
        return truth

    def _start_agent(self) -> None:
        address = f"127.0.0.1:{free_port()}"
        self._stage.start(
            "agent",
            *("agent", "--listen", address, "--dir", str(self._root), "--cluster", "demo"),
            # The folder of a node's own agent is that agent's.
            *("--state", str(self._out / "agent-state")),
            *("--scrape-interval", spelled(self._windows.scrape_seconds)),
        )
        self._stage.target(address)
        self._print_event("agent, Prometheus, Alertmanager, pager and boards run")
        self._say(self._stage.servers_table)

    def _follow(self, job: subprocess.Popen[bytes], script: Script) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("step {task.completed:.0f} of {task.total:.0f}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(f"training on {script.ranks} ranks", total=script.steps)
            while not self._stage.wait(0.1, lambda: job.poll() is not None):
                step = self._step()
                progress.update(task, completed=step)
                self._print_events(script, step)

    def _print_events(self, script: Script, step: int) -> None:
        if step > 0:
            watch = f"lockstep top {self._root / 'jobs' / JOB}"
            self._print_event(f"training began on {script.ranks} ranks; watch them: {watch}")
        if script.rank is not None and step >= script.from_step:
            self._print_event(f"fault injected: rank {script.rank} is slow in {script.phase}")
        if script.rank is not None and step >= script.until_step:
            self._print_event(f"fault removed: rank {script.rank} is quick again")
        for alert in self._pending():
            self._print_event(f"alert pending: {alert}")
        self._print_pages()

    def _print_pages(self) -> None:
        for received in read_pages(self._out):
            self._print_event(f"page: {printable(received.sentence)}")

    def _pending(self) -> list[str]:
        """Alerts of the job whose condition holds and that have not lasted for long enough yet."""
        from lockstep_prometheus.client import Prometheus  # noqa: PLC0415  # loads httpx

        query = f'ALERTS{{alertstate="pending",job_id="{JOB}"}}'
        try:
            with Prometheus(self._stage.url("prometheus")) as prometheus:
                series = prometheus.instant(query, time.time())
        except ValueError:  # it is busy; the next look is soon
            return []
        return sorted({each.labels["alertname"] for each in series})

    def _step(self) -> int:
        try:
            return read_page(page_path(self._root, JOB, 0, 0)).state["step"] or 0
        except PageError:
            return 0

    def _truth(self, script: Script) -> Truth:
        page = read_page(page_path(self._root, JOB, 0, script.rank or 0))
        start_by_step = {row["step"]: page.wall_seconds(row["start_ns"]) for row in read_rows(page)}
        return Truth(
            rank=script.rank,
            phase=script.phase,
            from_wall_seconds=start_by_step[script.from_step],
            until_wall_seconds=start_by_step[script.until_step],
        )

    def _resolved(self) -> bool:
        self._print_pages()
        pages = read_pages(self._out)
        return any(page.status == "resolved" for page in pages)

    def _conclude(self) -> None:
        job, prometheus = self._root / "jobs" / JOB, self._stage.url("prometheus")
        subprocess.run(
            ["cp", "-r", "--sparse=always", str(job), str(self._out / "job")], check=True
        )
        report = self._stage.lockstep(
            *("report", str(self._out / "job"), "--signs-from", prometheus),
            *("--json", str(self._out / "report.json")),
            *("--html", str(self._out / "report.html")),
            *("--board", str(self._out / "snapshot.html")),
            columns=self._console.width,
        )
        self._say(report)
        self._stage.lockstep("dashboards", "generate", "--out", str(self._out / "boards"))
        board = ("--board", "job", "--prometheus", prometheus, "--job-id", JOB)
        self._stage.lockstep("dashboards", "check", *board)
