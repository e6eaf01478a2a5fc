"""Every query of every board finds data: a real Prometheus, a real agent, real pages."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from servers import free_port

from lockstep_alerts.output import recorded_expressions
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue import RECORDED
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_dashboards.command import Finding, check_board, dashboards
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.panel import Board
from lockstep_dashboards.scope import Scope, run_query
from lockstep_prometheus.client import Prometheus
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.reader import Page, read_page
from lockstep_records.page.writer import PageWriter, RankIdentity

JOB = BOARDS["job.json"]

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

JOB_ID = "job-a"
NUM_RANKS, LATE_RANK = 4, 2
STEP_SECONDS = 0.05
TIMEOUT_SECONDS = 60.0
MAX_SCRAPE_STEPS = 5 / STEP_SECONDS  # as old as the newest sample may be


def seconds_of(rank: int) -> dict[str, float]:
    """A step of the rank: the late one works longer and waits less, so that all take as long."""
    own = 0.03 if rank == LATE_RANK else 0.01
    busy = {"data": 0.005, "backward": own, "sync": STEP_SECONDS - 0.005 - own}
    return dict.fromkeys(STEP_PHASES, 0.0) | busy


def write_step(writer: PageWriter, number: int, rank: int) -> None:
    seconds = seconds_of(rank)
    writer.count_step(number, STEP_SECONDS, 512, 4)
    writer.append(
        step=number,
        start_ns=0,
        seconds=STEP_SECONDS,
        phase_seconds=[*seconds.values()],
        tokens=512,
        samples=4,
    )
    for phase, part in seconds.items():
        writer.floats[SLOT.word("phase_seconds") + PHASES.index(phase)] += part
    for name in ("loss", "gradient_norm", "learning_rate"):
        writer.words[SLOT.word("present")] |= SLOT.presence[name]
        writer.floats[SLOT.word(name)] = 1 / (number + 1)
    for name, value in (("step", number), ("checkpoint_wall_ns", time.time_ns())):
        writer.words[SLOT.word("present")] |= SLOT.presence[name]
        writer.words[SLOT.word(name)] = value
    writer.count_collective("all_reduce", 1, 1 << 20, seconds["sync"])
    writer.periodic.know("resident_bytes", 1 << 30)
    writer.periodic.count("measured_steps")
    writer.periodic.add("measured_seconds", 1e-6)
    writer.periodic.commit(time.monotonic_ns())
    writer.heartbeat(time.monotonic_ns(), PHASES.index("data"))
    writer.commit(time.monotonic_ns())


@contextmanager
def running_job(root: Path) -> Iterator[None]:
    """Four ranks that go on stepping, in one thread of this process."""
    writers = [
        PageWriter(
            page_path(root, JOB_ID, 0, rank),
            RankIdentity(job_id=JOB_ID, rank=rank, world_size=NUM_RANKS, cluster="c"),
            256,
        )
        for rank in range(NUM_RANKS)
    ]
    over = threading.Event()

    def step() -> None:
        number = 0
        while not over.wait(STEP_SECONDS):
            for rank, writer in enumerate(writers):
                write_step(writer, number, rank)
            number += 1

    thread = threading.Thread(target=step)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for writer in writers:
            writer.close()


@contextmanager
def process(*command: str | Path) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            yield
        finally:
            started.terminate()


def write_config(folder: Path, agent_port: int) -> Path:
    rules = [
        {"record": series.name, "expr": text}
        for series, text in recorded_expressions(
            RECORDED, read_spec(spec_path(), Duration("1s"))
        ).items()
    ]
    (folder / "rules.yaml").write_text(json.dumps({"groups": [{"name": "r", "rules": rules}]}))
    scrape = {"job_name": "agent", "static_configs": [{"targets": [f"127.0.0.1:{agent_port}"]}]}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [scrape],
    }
    path = folder / "prometheus.yaml"
    path.write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def url(
    module_memory: Path,
    tmp_path_factory: pytest.TempPathFactory,
    serve_prometheus: Callable[[Path], AbstractContextManager[str]],
) -> Iterator[str]:
    """A Prometheus that scrapes an agent beside a running job."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not on PATH")
    agent_port = free_port()
    lockstep = Path(sys.executable).parent / "lockstep"
    agent = ("agent", "--listen", f"127.0.0.1:{agent_port}", "--cluster", "c")
    folders = ("--dir", module_memory, "--state", module_memory)
    with ExitStack() as stack:
        stack.enter_context(running_job(module_memory))
        stack.enter_context(process(lockstep, *agent, *folders))
        folder = tmp_path_factory.mktemp("prometheus")
        yield stack.enter_context(serve_prometheus(write_config(folder, agent_port)))


def check(url: str) -> Result:
    arguments = ["check", "--board", "job", "--prometheus", url, "--job-id", JOB_ID]
    more = ["--cluster", "c", "--range", "1m", "--scrape-interval", "1s"]
    return CliRunner().invoke(dashboards, [*arguments, *more], standalone_mode=False)


def findings(board: Board, url: str) -> dict[str, Finding]:
    scope = Scope(chosen={"job_id": (JOB_ID,)}, end=time.time(), range_seconds=60, scrape_seconds=1)
    with Prometheus(url) as server:
        return {found.panel: found for found in check_board(board, scope, server)}


@pytest.fixture(scope="module")
def all_good(url: str) -> Result:
    """The check, as soon as it finds nothing to object to."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    done = check(url)
    while done.return_value != 0 and time.monotonic() < deadline:
        time.sleep(1)
        done = check(url)
    return done


def test_no_panel_is_empty_and_none_errs(all_good: Result) -> None:
    assert all_good.return_value == 0, all_good.output
    assert "0 with a problem" in all_good.output


@pytest.mark.usefixtures("all_good")
def test_panels_that_may_be_empty_are_not_when_the_job_tells_all(url: str) -> None:
    found = findings(JOB, url)
    empty = {panel.title for panel in JOB.opened_panels if not found[panel.title].num_series}
    # No rule fires and no deadline is declared here; the two say so.
    assert empty == {"Causes in the cluster", "To spare before the deadline"}


@pytest.mark.usefixtures("all_good")
def test_the_late_rank_alone_stands_in_the_table_of_late_ranks(url: str) -> None:
    [table] = [item for item in JOB.panels if item.title == "Late ranks"]
    scope = Scope(chosen={"job_id": (JOB_ID,)}, end=time.time(), range_seconds=60, scrape_seconds=1)
    parameters = {"query": scope.fill(table.queries[0].expression)}
    rows = httpx.post(f"{url}/api/v1/query", data=parameters).json()["data"]["result"]
    [worst] = rows
    assert worst["metric"]["rank"] == str(LATE_RANK)
    assert worst["metric"]["node"] == os.uname().nodename


def test_an_unknown_job_is_refused_and_the_known_ones_are_named(url: str, all_good: Result) -> None:
    assert all_good.return_value == 0
    arguments = ["check", "--prometheus", url, "--board", "job", "--job-id", "never"]
    done = CliRunner().invoke(dashboards, arguments)
    assert done.exit_code == 2
    assert "no series has the job_id 'never'" in done.output
    assert f"there are: {JOB_ID}" in done.output


@pytest.mark.usefixtures("all_good")
def test_a_snapshot_of_a_running_job_names_the_late_rank_alone(url: str, tmp_path: Path) -> None:
    path = tmp_path / "job.html"
    arguments = ["snapshot", "job", "--prometheus", url, "--from", "-1m", "--out", str(path)]
    done = CliRunner().invoke(dashboards, arguments, standalone_mode=False)
    assert done.return_value == 0, done.output
    rows = re.findall(
        r"<td[^>]*>\s*(\d)</td>\s*<td[^>]*>\s*" + os.uname().nodename, path.read_text()
    )
    # Who holds it back, and the late ranks of the last minutes: nobody else is late.
    assert rows == [str(LATE_RANK)] * 2


def value_of(url: str, title: str, **labels: str) -> float:
    """The newest value of the series with these labels of a panel of the job board."""
    [panel] = [item for item in JOB.panels if item.title == title]
    scope = Scope(chosen={"job_id": (JOB_ID,)}, end=time.time(), range_seconds=20, scrape_seconds=1)
    with Prometheus(url) as server:
        series = [x for query in panel.queries for x in run_query(panel, query, scope, server)]
    [chosen] = [x for x in series if labels.items() <= x.labels.items()]
    return chosen.points[-1][1]


def page_of(root: Path, rank: int) -> Page:
    return read_page(page_path(root, JOB_ID, 0, rank))


@pytest.mark.usefixtures("all_good")
def test_values_of_the_board_agree_with_the_rank_pages(url: str, module_memory: Path) -> None:
    before = page_of(module_memory, 0).state["step"]
    step, loss = value_of(url, "Step"), value_of(url, "Loss over time")
    pages = [page_of(module_memory, rank) for rank in range(NUM_RANKS)]
    assert before - MAX_SCRAPE_STEPS <= step <= pages[0].state["step"]
    assert 1 / (pages[0].state["step"] + 1) <= loss <= 1 / (before - MAX_SCRAPE_STEPS + 1)
    for phase in ("data", "backward", "sync"):
        of_ranks = [page.state["phase_seconds"][phase] / page.state["steps"] for page in pages]
        mean = sum(of_ranks) / NUM_RANKS
        assert value_of(url, "Phase per step", phase=phase) == pytest.approx(mean, rel=0.05)
    waits = [page.state["phase_seconds"]["sync"] / page.state["steps"] for page in pages]
    late = value_of(url, "Who holds it back", rank=str(LATE_RANK))
    share = (max(waits) - waits[LATE_RANK]) / STEP_SECONDS
    assert late == pytest.approx(share, rel=0.05)
    exposed = value_of(url, "Exposed collectives per step", kind="all_reduce")
    assert exposed == pytest.approx(sum(waits) / NUM_RANKS, rel=0.05)
    assert value_of(url, "State") == 1  # training
