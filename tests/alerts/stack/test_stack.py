import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockstep_alerts.stack.servers import is_alive, read_state, wait_for
from lockstep_catalogue import training
from lockstep_catalogue.metric import Metric

from ..cases.synthetic import NUM_RANKS, healthy, one_rank_late

LOCKSTEP = (sys.executable, "-c", "from lockstep_cli.main import main; main()")


@dataclass
class Job:
    """A job whose counters move with the clock; who scrapes sees a real exposition."""

    job_id: str
    extra: Mapping[str, float] = field(default_factory=dict)
    state: str = "training"
    is_diverged: bool = False
    nonfinite: float = 0
    steps: float = 0
    phases: dict[tuple[int, str], float] = field(default_factory=dict)

    def advance(self, seconds: float) -> None:
        regime = one_rank_late(1, 2, self.extra) if self.extra else healthy(1)
        num_steps = seconds / regime.step_seconds
        self.steps += num_steps
        self.nonfinite += num_steps * self.is_diverged
        for rank, phases in enumerate(regime.ranks):
            for phase, phase_seconds in phases.items():
                key = (rank, phase)
                self.phases[key] = self.phases.get(key, 0) + phase_seconds * num_steps

    def lines(self) -> Iterator[str]:
        yield self._line(training.RANKS, NUM_RANKS, state=self.state)
        yield self._line(training.NONFINITE_STEPS, self.nonfinite)
        for rank in map(str, range(NUM_RANKS)):
            yield self._line(training.RANK_INFO, 1, rank=rank)
            yield self._line(training.STEPS, self.steps, rank=rank)
            yield self._line(training.LAST_PROGRESS, time.time(), rank=rank)
        for (number, phase), seconds in self.phases.items():
            yield self._line(training.PHASE_SECONDS, seconds, rank=str(number), phase=phase)

    def _line(self, metric: Metric, value: float, **labels: str) -> str:
        named = {"cluster": "c1", "node": "n1", "job_id": self.job_id, **labels}
        inside = ",".join(f'{name}="{text}"' for name, text in named.items())
        return f"{metric.name}{{{inside}}} {value!r}"


class Agent(ThreadingHTTPServer):
    """Serves /metrics of its jobs."""

    daemon_threads = True

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._lock = threading.Lock()
        self._seen = time.monotonic()
        super().__init__(("127.0.0.1", 0), _Exposition)

    def exposition(self) -> str:
        with self._lock:
            now = time.monotonic()
            for job in self.jobs:
                job.advance(now - self._seen)
            self._seen = now
            return "".join(f"{line}\n" for job in self.jobs for line in job.lines())


class _Exposition(BaseHTTPRequestHandler):
    server: Agent

    def do_GET(self) -> None:
        body = self.server.exposition().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def lockstep(*words: object) -> subprocess.CompletedProcess[str]:
    command = [*LOCKSTEP, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@dataclass(frozen=True, kw_only=True)
class Stack:
    folder: Path
    agent: Agent

    def url(self, name: str) -> str:
        return read_state(self.folder)[name].url

    def pages(self) -> list[dict[str, Any]]:
        path = self.folder / "pages.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for_page(self, matches: Callable[[dict[str, Any]], bool], seconds: float) -> Any:
        assert wait_for(lambda: any(map(matches, self.pages())), seconds), self.pages()
        return next(page for page in self.pages() if matches(page))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack") / "st"
    with Agent() as agent:
        threading.Thread(target=agent.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{agent.server_port}"
        intervals = ("--interval", "1s", "--group-interval", "1s")
        done = lockstep("stack", "up", "--dir", folder, "--target", target, *intervals)
        assert done.returncode == 0, done.stderr
        assert re.search(r"prometheus .*http://127\.0\.0\.1:\d+", done.stdout)
        state = read_state(folder)
        yield Stack(folder=folder, agent=agent)
        assert lockstep("stack", "down", "--dir", folder).returncode == 0
        assert not any(map(is_alive, state.values()))
        agent.shutdown()


@pytest.mark.server
@pytest.mark.timeout(150)
def test_a_straggler_is_paged_once_with_its_runbook_and_its_board(running: Stack) -> None:
    job = Job("slow", extra={"data": 0.1})
    running.agent.jobs.append(job)

    def of_job(page: dict[str, Any]) -> bool:
        return bool(page["group_labels"].get("incident") == "slow")

    page = running.wait_for_page(of_job, 60)
    assert (page["receiver"], page["status"]) == ("pager", "firing")
    (alert,) = page["alerts"]
    assert alert["labels"] == {
        "alertname": "JobLosing",
        "cause": "rank",
        "cluster": "c1",
        "incident": "slow",
        "job_id": "slow",
        "node": "n1",
        "phase": "data",
        "rank": "2",
        "severity": "critical",
        **dict.fromkeys(("project", "queue", "class"), "unknown"),
    }
    assert "2 GPU-hours are lost each hour" in alert["annotations"]["description"]
    runbook = httpx.get(alert["annotations"]["runbook_url"], trust_env=False)
    assert runbook.text.startswith("# JobLosing\n")
    board = httpx.get(alert["annotations"]["dashboard_url"], trust_env=False)
    assert (board.status_code, "<h1>Lockstep: job</h1>" in board.text) == (200, True)
    assert [page["status"] for page in running.pages() if of_job(page)] == ["firing"]


@pytest.mark.server
@pytest.mark.timeout(90)
def test_a_loss_that_stays_no_number_is_its_owners_ticket(running: Stack) -> None:
    job = Job("nan")
    running.agent.jobs.append(job)
    assert wait_for(lambda: job.steps > 0, 20)
    job.is_diverged = True
    page = running.wait_for_page(
        lambda page: page["group_labels"].get("alertname") == "TrainLossBad", 40
    )
    assert [alert["labels"]["alertname"] for alert in page["alerts"]] == ["TrainLossBad"]


@pytest.mark.server
def test_status_tells_what_is_down_and_down_ends_the_rest(tmp_path: Path) -> None:
    assert lockstep("stack", "up", "--dir", tmp_path).returncode == 0
    state = read_state(tmp_path)
    again = lockstep("stack", "up", "--dir", tmp_path)
    assert (again.returncode, "is running there" in again.stderr) == (2, True)
    assert lockstep("stack", "status", "--dir", tmp_path).returncode == 0
    flags = httpx.get(f"{state['prometheus'].url}/api/v1/status/flags", trust_env=False).json()
    assert flags["data"]["enable-feature"] == "exemplar-storage"
    os.kill(state["pager"].pid, signal.SIGKILL)
    assert wait_for(lambda: not is_alive(state["pager"]), 10)
    status = lockstep("stack", "status", "--dir", tmp_path)
    assert status.returncode == 1
    assert re.search(r"pager .* down", status.stdout)
    down = lockstep("stack", "down", "--dir", tmp_path)
    assert down.stdout == "stopped alertmanager, prometheus, boards\n"
    assert not any(map(is_alive, state.values()))
    assert lockstep("stack", "status", "--dir", tmp_path).returncode == 1
