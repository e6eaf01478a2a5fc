import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from servers import Exposition, serving

from lockstep_alerts.stack.command import stack as stack_group
from lockstep_alerts.stack.servers import STATE_FILE, Running, is_alive, read_state, stop, wait_for
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


class Agent(Exposition):
    """Serves /metrics of its jobs."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._lock = threading.Lock()
        self._seen = time.monotonic()
        super().__init__()

    def exposition(self) -> str:
        with self._lock:
            now = time.monotonic()
            for job in self.jobs:
                job.advance(now - self._seen)
            self._seen = now
            return "".join(f"{line}\n" for job in self.jobs for line in job.lines())


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
    with serving(Agent()) as agent:
        agent.jobs += [Job("slow", extra={"data": 0.1}), Job("nan", is_diverged=True)]
        intervals = ("--interval", "1s", "--group-interval", "1s")
        done = lockstep("stack", "up", "--dir", folder, "--target", agent.target, *intervals)
        assert done.returncode == 0, done.stderr
        assert re.search(r"prometheus .*http://127\.0\.0\.1:\d+", done.stdout)
        state = read_state(folder)
        yield Stack(folder=folder, agent=agent)
        assert lockstep("stack", "down", "--dir", folder).returncode == 0
        assert not any(map(is_alive, state.values()))


@pytest.mark.server
@pytest.mark.timeout(150)
def test_a_straggler_is_paged_once_with_its_runbook_and_its_board(running: Stack) -> None:
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


# Its port is taken after its choice, once; then it is still being loaded from a slow disk, with an
# empty command line.
FALTERS = """\
#!{python}
import os, sys, json
try:
    os.mkdir("{folder}/once")
except FileExistsError:
    wait = 'import os, json, time; time.sleep(1); a = json.loads(os.environ["A"])'
    wait += '; os.execv("{prometheus}", a)'
    os.environ['A'] = json.dumps(sys.argv)
    os.execv(sys.executable, [sys.executable, '-c', wait])
sys.exit('err="listen tcp 127.0.0.1:9: bind: address already in use"')
"""


@pytest.mark.server
def test_a_server_whose_begin_falters_is_begun_anew_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, prometheus = tmp_path / "prometheus", shutil.which("prometheus")
    text = FALTERS.format(prometheus=prometheus, python=sys.executable, folder=tmp_path)
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    started = lockstep("stack", "up", "--dir", tmp_path / "st")
    assert started.returncode == 0, started.stderr
    assert (tmp_path / "once").exists()
    assert lockstep("stack", "down", "--dir", tmp_path / "st").returncode == 0


@pytest.mark.server
def test_where_a_server_fails_none_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "prometheus"
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = tmp_path / "st"
    done = lockstep("stack", "up", "--dir", folder)
    assert done.returncode == 2
    assert "prometheus did not become ready; its log is" in done.stderr
    assert not (folder / STATE_FILE).exists()
    left = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and str(folder).encode() in path.read_bytes()
    ]
    assert not left


def test_a_process_that_took_over_the_number_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        stop(Running(url="http://127.0.0.1:1", pid=other.pid, command=("sleep", "61")))
        assert other.poll() is None
        other.kill()


def bad(*arguments: object) -> str:
    outcome = CliRunner().invoke(stack_group, list(map(str, arguments)))
    assert outcome.exit_code == 2, outcome.output
    return " ".join(outcome.output.split())


@pytest.mark.promtool
def test_a_bad_option_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "st"
    assert "--target 'no port' is not HOST:PORT" in bad(
        "up", "--dir", folder, "--target", "no port"
    )
    assert "is not a duration" in bad("up", "--dir", folder, "--interval", "5 seconds")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = bad("up", "--dir", folder, "--prometheus-port", port)
    assert f"--prometheus-port {port}: Address already in use" in message
    assert not folder.exists()


def test_a_missing_server_names_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    message = bad("up", "--dir", tmp_path / "st")
    assert "prometheus is not on PATH; install it (Debian package prometheus)" in message


@pytest.mark.promtool
def test_a_folder_that_cannot_be_or_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "name a writable folder" in bad("up", "--dir", tmp_path / "file" / "st")
    (tmp_path / STATE_FILE).write_text("[]", encoding="utf-8")
    for word in ("up", "down", "status"):
        assert "was not written by stack up" in bad(word, "--dir", tmp_path)
    assert "no stack was started in it" in bad("down", "--dir", tmp_path / "none")
