"""The scrape: both formats, the golden one of a fake node, and what a broken collector costs."""

import logging
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_agent.collector import AnyReading, Guard, Reading, Tier
from lockstep_agent.exposition.text import Exposition
from lockstep_agent.health.judge import Judge
from lockstep_agent.options import Options
from lockstep_agent.program import renderer_of
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.collector_worker import CollectorWorker
from lockstep_agent.runtime.sampler import Sampler
from lockstep_catalogue import Endpoint, Metric, agent, fabric, gpu, incidents, metrics_of, training

from ..live_page import LivePage
from ..livecheck import complaints, describe_changes

AGENT_METRICS = metrics_of(Endpoint.AGENT)
GOLDEN = Path(__file__).parents[2] / "golden" / "agent.prom"
VOLATILE = (
    incidents.GPU_XID_LAST, agent.COLLECTOR_DURATION, agent.AGENT_TICK, gpu.GPU_PCIE_BYTES,
    gpu.GPU_ENERGY, gpu.GPU_POWER_WINDOW, gpu.GPU_CLOCK_WINDOW, gpu.NVLINK_BYTES,
    agent.AGENT_MEMORY, agent.AGENT_CPU, training.LAST_PROGRESS, training.GOODPUT_SECONDS,
    training.HANG_FIRST,
)  # fmt: skip


class Broken:
    """A collector that fails when a test says so, after its first reading."""

    name = "broken"
    tier = Tier.EVERY_TICK

    def __init__(self) -> None:
        self.fails = True

    def collect(self) -> Iterator[AnyReading]:
        yield Reading(fabric.NET_UP, ("eth0",), 1)
        if self.fails:
            raise ZeroDivisionError("no such thing")


def busy_job(root: Path, hang_seconds: float) -> None:
    """Four ranks: one hangs in its own work, one checkpoints, one is done, one has gone."""
    for rank, phase in enumerate(("backward", "checkpoint", "done", "forward")):
        mesh = (("dp", rank // 2), ("pp", rank % 2))
        uuid = f"GPU-00000000-0000-0000-0000-{rank:012d}"
        page = LivePage(root, rank=rank, mesh=mesh, gpu_uuid=uuid)
        for number in range(8):
            page.step(number, loss=2.5 - number / 4)
        page.set_optional("gradient_norm", 0.75)
        page.set_optional("learning_rate", 0.001)
        page.set_optional("checkpoint_wall_ns", 1_700_000_000_000_000_000)
        page.row(8, seconds=0.01, waited=0.004 * (rank // 2))
        page.writer.periodic.count("out_of_memory", number=rank // 3)
        page.write_periodic()
        page.writer.count_checkpoint("ok")
        page.commit()
        page.phase(phase, ago_seconds=2 * hang_seconds if phase == "backward" else 0)
    page.replace_identity(pid=0x7FFFFFFF)


def sampled(options: Options) -> Exposition:
    sampler = Sampler(
        CollectorRuntime(options),
        options.tick,
        judge=Judge(options.expected),
        renderer=renderer_of(options),
    )
    sampler.sample()
    time.sleep(0.11)  # activity is measured between two samples
    return sampler.sample()


def settled(scrape: str) -> str:
    """The scrape with 0 for the values that no two runs share, and without the version."""
    for metric in VOLATILE:
        scrape = re.sub(rf"^({metric.name}\S*) .*$", r"\1 0.0", scrape, flags=re.MULTILINE)
    of_version = rf'^({agent.AGENT_INFO.name}.*version=)"[^"]*"'
    return re.sub(of_version, r'\1"0"', scrape, flags=re.MULTILINE)


def test_the_scrape_of_the_fake_node_is_the_golden_one(root: Path, options: Options) -> None:
    busy_job(root, options.hang_timeout_seconds)
    scrape = settled(sampled(options).text.decode())
    if os.environ.get("LOCKSTEP_GOLDEN"):
        GOLDEN.write_text(scrape)
    golden = GOLDEN.read_text()
    assert scrape == golden, describe_changes(golden, scrape)


@pytest.mark.promtool
def test_promtool_has_no_complaint_about_the_golden_scrape() -> None:
    lint = subprocess.run(
        ["promtool", "check", "metrics"],
        input=GOLDEN.read_bytes(),
        capture_output=True,
        check=False,
    )
    assert (lint.returncode, lint.stdout + lint.stderr) == (0, b"")


def test_the_fake_node_emits_metrics_of_the_catalogue_as_declared(
    root: Path, options: Options
) -> None:
    busy_job(root, options.hang_timeout_seconds)
    LivePage(root, job_id="asynchronous").share_parameters()
    assert complaints(sampled(options).openmetrics.decode()) == []


def test_a_broken_collector_costs_only_itself(options: Options) -> None:
    broken, runtime = Broken(), CollectorRuntime(options)
    worker = CollectorWorker("broken", (broken,))
    sampler = Sampler(lambda: (worker, *runtime()), tick_seconds=1)
    for _ in range(2):
        text = sampler.sample().text.decode()
    assert f'{agent.COLLECTOR_SUCCESS.name}{{collector="broken"}} 0.0' in text
    assert f'{agent.COLLECTOR_FAILURES.name}{{collector="broken"}} 2.0' in text
    assert f'{agent.COLLECTOR_SUCCESS.name}{{collector="net"}} 1.0' in text
    assert 'device="eth0"' not in text
    broken.fails = False
    assert 'device="eth0"' in sampler.sample().text.decode()


def test_a_collector_that_breaks_or_heals_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    guard = Guard(broken)
    with caplog.at_level(logging.INFO):
        for fails in (True, True, False, False):
            broken.fails = fails
            guard.run()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "ZeroDivisionError: no such thing" in caplog.text


@pytest.mark.parametrize(
    ("metric", "labels"),
    [
        (fabric.NET_UP, ()),
        (fabric.NET_BYTES, ("eth0", "sideways")),
        (fabric.NET_UP, ("\udcff",)),
        (training.STEP_SECONDS, ("east", "job", "node")),
    ],
)
def test_a_reading_that_fits_no_metric_is_refused(metric: Metric, labels: tuple[str, ...]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        Reading(metric, labels, 1)
