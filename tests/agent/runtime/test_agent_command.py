"""``lockstep agent`` as a process: what it serves, what it refuses and how it ends."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from servers import serving, wait_until

from lockstep_agent.collector import Tier
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_worker import CollectorWorker
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.web.server import MetricsServer
from lockstep_catalogue import training

from ..in_process import refused_message
from ..live_page import LivePage
from ..livecheck import complaints
from ..running_agent import COMMAND, command_line, get, running_agent

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


@pytest.mark.server
def test_a_running_agent_emits_what_the_catalogue_declares_and_follows_the_ranks(
    root: Path, options: Options
) -> None:
    page = LivePage(root, gpu_uuid="GPU-00000000-0000-0000-0000-000000000000")
    page.step(1)
    for field in ("gradient_norm", "learning_rate"):
        page.set_optional(field, 0.5)
    page.set_optional("checkpoint_wall_ns", time.time_ns())
    page.writer.count_checkpoint("ok")  # the histogram of their seconds is there from the first on
    page.commit()
    page.row(1, seconds=1.0)
    page.commit()
    page.writer.periodic.count("out_of_memory")
    LivePage(root, job_id="asynchronous").share_parameters()
    hung = LivePage(root, rank=1)
    for number in range(8):
        hung.step(number)
    hung.row(1, seconds=1.0, waited=0.5)
    hung.commit()
    for each in (page, hung):
        each.write_periodic()
    hung.phase("forward", ago_seconds=2 * options.hang_timeout_seconds)
    with running_agent(options) as (_, url):
        answer = get(url, headers=OPENMETRICS)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        wait_until(lambda: complaints(get(url, headers=OPENMETRICS).text) == [], pause=0.5)
        page.step(2)
        line = f'{training.STEPS.name}{{cluster="east",job_id="job",node="node-7",rank="0"}} 3.0'
        wait_until(lambda: line in get(url).text)
        assert get(url).headers["content-type"].startswith("text/plain; version=0.0.4")
        assert get(url.replace("/metrics", "/healthz")).text == "ok\n"
        assert "/metrics" in get(url.replace("/metrics", "/")).text
        assert get(url + "x").status_code == httpx.codes.NOT_FOUND


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent_soon_and_cleanly(options: Options, number: signal.Signals) -> None:
    with running_agent(options) as (agent, _):
        agent.send_signal(number)
        assert agent.wait(timeout=30) == 0
        assert agent.stderr is not None
        assert agent.stderr.read() == ""


def test_a_scrape_serves_bytes_and_reads_no_source(options: Options) -> None:
    class Counting:
        name = "counting"
        tier = Tier.EVERY_TICK
        runs = 0

        def collect(self) -> tuple[()]:
            self.runs += 1
            return ()

    source = Counting()
    workers = (CollectorWorker("counting", (source,)),)
    sampler = Sampler(lambda: workers, tick_seconds=60)
    server = MetricsServer(options.host, 0, sampler)
    sampler.start()
    with serving(server), httpx.Client() as client:
        start = time.perf_counter()
        bodies = {client.get(server.url).content for _ in range(50)}
        assert (time.perf_counter() - start) / 50 < 0.05
    assert sampler.latest is not None
    assert bodies == {sampler.latest.text}
    assert source.runs == 1


@pytest.mark.server
def test_a_scraper_that_hangs_up_is_not_logged(options: Options) -> None:
    with running_agent(options) as (agent, url):
        for _ in range(5):
            with socket.create_connection((options.host, httpx.URL(url).port)) as caller:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                caller.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert get(url).status_code == httpx.codes.OK
        agent.send_signal(signal.SIGTERM)
        assert agent.stderr is not None
        assert agent.stderr.read() == ""


def test_health_fails_when_sampling_has_stopped() -> None:
    now = [1000.0]
    sampler = Sampler(tuple, tick_seconds=1, clock=lambda: now[0])
    assert not sampler.is_fresh()
    sampler.sample()
    assert sampler.is_fresh()
    now[0] += 11
    assert not sampler.is_fresh()


def test_once_prints_one_scrape_and_logs_a_missing_driver(options: Options, tmp_path: Path) -> None:
    library = tmp_path / "broken.so"
    library.write_text("no library")
    arguments = [*command_line(options), "--nvml-library", str(library), "--once"]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("# HELP ")
    assert done.stderr.count("\n") == 1
    assert "no GPU driver answers" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--listen", "nowhere"), "'nowhere' is not HOST:PORT"),
        (("--listen", "127.0.0.1:70000"), "'127.0.0.1:70000' is not HOST:PORT"),
        (("--dir", "/no/such/place"), "/no/such/place cannot hold jobs"),
        (("--tick", "nan"), "'nan' is not a duration"),
        (("--tick", "1"), "'1' is not a duration"),
        (("--scrape-interval", "6m"), "6m is not in the range 1s<=x<=1m"),
        (("--node", ""), "'' cannot be a label"),
        (("--sysfs", "/no/such/place"), "/no/such/place"),
        (("--archive", "nosuch://a"), "'nosuch://a' has an unknown scheme; known are abfs, "),
        (("--archive", "simplecache::nosuch://a"), "unknown scheme"),
        (("--archive", "gdrive://a"), "'gdrive://a' needs the package gdrive_fsspec"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    named: str,
) -> None:
    assert named in refused_message(monkeypatch, capsys, "agent", *arguments)


def test_a_busy_port_is_one_sentence_and_exit_status_2(options: Options) -> None:
    with socket.create_server((options.host, 0)) as busy:
        address = f"{options.host}:{busy.getsockname()[1]}"
        arguments = [*command_line(options), "--listen", address]
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"lockstep: cannot bind --listen {address}")
    assert done.stderr.count("\n") == 1


def test_help_loads_neither_torch_nor_the_loop_nor_the_libraries_of_the_agent() -> None:
    heavy = ("torch", "lockstep", "pynvml", "prometheus_client", "http.server")
    code = (
        "import sys; from lockstep_cli.main import group;"
        "group.main(['agent', '--help'], standalone_mode=False);"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("[]\n")


@pytest.mark.server
@pytest.mark.timeout(60)
def test_a_second_agent_on_a_state_is_refused_until_the_first_has_ended(options: Options) -> None:
    with running_agent(options):
        second = subprocess.run(
            [*COMMAND, *command_line(options)], capture_output=True, text=True, check=False
        )
        assert second.returncode == 2
        assert f"--state {options.state} is in use by another running agent" in second.stderr
    with running_agent(options):
        pass
