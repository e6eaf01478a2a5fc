"""A driver call that hangs: its GPU goes silent in time, everything else continues."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import httpx
import pytest

from lockstep_agent.collector import AnyReading, Reading, SourceLostError, Tier
from lockstep_agent.health.judge import Judge
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.collector_worker import CollectorWorker
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.web.server import MetricsServer
from lockstep_catalogue import agent, fabric, gpu
from lockstep_cli.gameday.fake_node import FakeNode

from .test_agent_gpu import A100, H100

STALE_SECONDS = 5.0


def line_of(text: str, metric: str, labels: tuple[str, str]) -> str | None:
    """The value of one series of a GPU, None when it is not there."""
    start = f'{metric}{{gpu="{labels[0]}",uuid="{labels[1]}"}} '
    values = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
    return values[0] if values else None


@pytest.fixture(name="url")
def _url(options: Options) -> Iterator[str]:
    runtime = CollectorRuntime(options)
    sampler = Sampler(runtime, options.tick)
    server = MetricsServer(options.host, 0, sampler)
    sampler.start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.url
    server.shutdown()
    server.server_close()


def test_a_gpu_whose_calls_hang_is_stale_in_seconds_and_comes_back(
    url: str, node: FakeNode
) -> None:
    power = gpu.GPU_POWER.name
    until(url, lambda text: line_of(text, power, H100) is not None)
    node.change(0, hang=1)
    hung_at = time.monotonic()
    text = until(url, lambda text: line_of(text, power, H100) is None)
    assert time.monotonic() - hung_at < STALE_SECONDS
    assert line_of(text, gpu.GPU_UP.name, H100) == "0.0"
    assert f'{agent.WORKER_STALLED.name}{{worker="gpu0"}} 1.0' in text
    node.set(1, "nvmlDeviceGetPowerUsage", 71000)
    until(url, lambda text: line_of(text, power, A100) == "71.0")
    with httpx.Client() as client:
        client.get(url)
        start = time.perf_counter()
        for _ in range(20):
            client.get(url)
        assert (time.perf_counter() - start) / 20 < 0.1
    node.change(0, hang=None)
    text = until(url, lambda text: line_of(text, power, H100) is not None)
    assert line_of(text, gpu.GPU_UP.name, H100) == "1.0"


def until(url: str, condition: Callable[[str], bool]) -> str:
    deadline = time.monotonic() + 30
    while True:
        text = httpx.get(url).text
        if condition(text):
            return text
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


class Slow:
    """A collector that waits until it may go on."""

    name, tier = "slow", Tier.EVERY_TICK

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def collect(self) -> Iterator[Reading]:
        self.goes_on.wait(30)
        yield Reading(fabric.NET_UP, ("eth0",), 1)


def test_a_worker_that_hangs_is_not_waited_for_twice_and_reports_its_age() -> None:
    now, slow = [0.0], Slow()
    worker = CollectorWorker("slow", (slow,), clock=lambda: now[0])
    sampler = Sampler(lambda: (worker,), tick_seconds=1)
    start = time.monotonic()
    sampler.sample(timeout_seconds=0.1)
    assert time.monotonic() - start < 5
    assert not worker.run_once()
    assert not worker.is_hung
    now[0] = 30.0  # nobody looked for as long: the agent itself got no processor
    assert not stalled(sampler)
    now[0] = 30.1
    assert stalled(sampler)
    slow.goes_on.set()
    assert worker.wait(30)
    text = sampler.sample().text.decode()
    assert f'{agent.WORKER_STALLED.name}{{worker="slow"}} 0.0' in text
    assert 'device="eth0"' in text


def stalled(sampler: Sampler) -> bool:
    text = sampler.sample(timeout_seconds=0.1).text.decode()
    return f'{agent.WORKER_STALLED.name}{{worker="slow"}} 1.0' in text


def test_a_worker_whose_thread_waits_for_a_core_is_not_hung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, queued, slow = [0.0], [7.0], Slow()
    monkeypatch.setattr(os, "pread", lambda *_: f"1 {round(queued[0] * 1e9)} 1".encode())
    worker = CollectorWorker("slow", (slow,), clock=lambda: now[0])
    sampler = Sampler(lambda: (worker,), tick_seconds=1)
    seen = []
    for now[0] in range(8):
        queued[0] += 0.5
        seen.append(stalled(sampler))
    assert seen == [False] * 7 + [True]  # half of the time counts
    slow.goes_on.set()
    assert worker.end(30)


class Counted:
    name = "counted"

    def __init__(self, tier: Tier) -> None:
        self.tier, self.runs = tier, 0

    def collect(self) -> Iterator[Reading]:
        self.runs += 1
        yield Reading(fabric.NET_UP, (f"runs{self.runs}",), 1)


def test_a_collector_runs_in_its_tier_and_its_last_readings_are_served_in_between() -> None:
    now = [0.0]
    tiers = [Counted(tier) for tier in Tier]
    worker = CollectorWorker("tiers", tiers, clock=lambda: now[0])
    for _ in range(61):
        assert worker.run_once()
        assert worker.wait(30)
        readings = chain.from_iterable(worker.parts())
        assert sum(reading.metric is fabric.NET_UP for reading in readings) == len(tiers)
        now[0] += 1
    assert [counted.runs for counted in tiers] == [61, 7, 2]


class Lost(Counted):
    """A collector that loses its source when a test says so."""

    is_lost = False

    def collect(self) -> Iterator[Reading]:
        if self.is_lost:
            raise SourceLostError("lost", "gone")
        return super().collect()


class Counting(Judge):
    """A judge that records when it judges."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._now, self.judged_seconds = clock, list[float]()

    def judge(self, readings: Sequence[AnyReading], now_seconds: float) -> tuple[Reading, ...]:
        self.judged_seconds.append(self._now())
        return super().judge(readings, now_seconds)


def test_verdicts_follow_the_slower_tiers_and_at_once_a_worker_that_falls_silent() -> None:
    now = [0.0]
    judge, gpu0 = Counting(lambda: now[0]), Lost(Tier.EVERY_TICK)
    workers = [
        CollectorWorker(name, (collector,), clock=lambda: now[0])
        for name, collector in (("gpu0", gpu0), ("host", Counted(Tier.TEN_SECONDS)))
    ]
    sampler = Sampler(lambda: workers, tick_seconds=1, judge=judge)
    for tick in range(30):
        now[0] = float(tick)
        gpu0.is_lost = tick in {14, 15, 16}
        sampler.sample(always_judge=False)
    assert judge.judged_seconds == [0, 10, 14, 17, 20]
    sampler.sample()
    assert judge.judged_seconds[-1] == 29
