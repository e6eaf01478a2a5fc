"""The number of series of a node: within its budget, and what is left out beyond it."""

import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep_agent.collector import Part, Reading
from lockstep_agent.exposition.series_budget import SeriesBudget
from lockstep_agent.exposition.text import Renderer
from lockstep_agent.options import Options
from lockstep_agent.program import renderer_of
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_catalogue import agent, fabric, gpu, series_budget, training
from lockstep_catalogue.labels import KIND
from lockstep_cli.gameday.fake_node import FakeNode, Tree, h100

from ..fake_tree import fill_cgroups
from ..live_page import LivePage

SPARE_SERIES = 130  # for what is yet to be measured
MAX_SERIES_A_RANK = 12


@pytest.fixture(name="big_node")
def _big_node(options: Options, node: FakeNode, tmp_path: Path) -> Options:
    """8 GPUs with NVLink, 8 RDMA adapters and 2 network cards, with the agent's defaults."""
    FakeNode(node.path, [h100() for _ in range(8)])
    Tree(tmp_path / "sys", gpus=8, infiniband=8, ethernet=2)
    fill_cgroups(tmp_path / "sys")
    return replace(options, sysfs=tmp_path / "sys", detail=False)


def run_jobs(root: Path, num_jobs: int) -> list[LivePage]:
    """Eight ranks of so many jobs, each with every kind of collective and value."""
    pages = []
    for gpu_index in range(8):
        page = LivePage(
            root,
            job_id=f"job-{gpu_index % num_jobs}",
            rank=gpu_index // num_jobs,
            world_size=8,
            gpu_uuid=f"GPU-00000000-0000-0000-0000-{gpu_index:012d}",
        )
        page.step(1)
        for field in ("gradient_norm", "learning_rate"):
            page.set_optional(field, 0.5)
        page.set_optional("checkpoint_wall_ns", 1_700_000_000_000_000_000)
        page.writer.count_checkpoint("ok")
        for kind in KIND.values:
            page.writer.count_collective(kind, 2, 1 << 20, 0.01)
            page.writer.periodic.count("bus_bytes", kind, 4096)
        page.write_periodic()
        page.commit()
        pages.append(page)
    return pages


def series_of(text: bytes) -> Counter[str]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return Counter(re.split(r"[{ ]", line)[0] for line in lines)


@pytest.mark.parametrize("num_jobs", [1, 2, 4])
def test_eight_gpus_ten_ports_and_eight_ranks_of_several_jobs_stay_in_the_budget(
    root: Path, big_node: Options, num_jobs: int
) -> None:
    pages = run_jobs(root, num_jobs)
    sampler = Sampler(CollectorRuntime(big_node), 1, renderer=renderer_of(big_node))
    sampler.sample()
    time.sleep(0.11)  # activity and rates are measured between two samples
    for page in pages:
        for kind in KIND.values:
            page.writer.count_collective(kind, 2, 1 << 20, 0.01)
            page.writer.periodic.count("bus_bytes", kind, 4096)
        page.write_periodic()
        page.commit()
    exposition = sampler.sample()
    series = series_of(exposition.text)
    assert series[training.COLLECTIVE_SECONDS.name] == num_jobs * len(KIND.values)
    assert series[gpu.GPU_UP.name] == 8
    # By rank: each of 100,000 ranks adds so many. An owner and a slowest writer are one a device
    # and a job, whatever rank they name.
    of_rank = re.findall(
        r'^(?!\S*(?:_owner_info|_slowest_writer_)).*[{,]rank="1"',
        exposition.text.decode(),
        re.MULTILINE,
    )
    assert len(of_rank) == MAX_SERIES_A_RANK * num_jobs
    assert series.total() <= series_budget.MAX_SERIES - SPARE_SERIES
    counted = re.search(
        rf"^{agent.AGENT_SERIES.name}\S* (\S+)$", exposition.text.decode(), re.MULTILINE
    )
    assert counted is not None
    assert float(counted[1]) == series.total()
    left_out = set(re.findall(r'left_out="(\w+)"', exposition.text.decode()))
    assert left_out == {"zero", "detail"}, "no group of detail is over budget"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def errors(*values: float) -> Part:
    return tuple(
        Reading(fabric.PORT_ERRORS, (f"mlx5_{index}", "1", "symbol"), value)
        for index, value in enumerate(values)
    )


def served(renderer: Renderer, *parts: Part) -> dict[str, str]:
    text = renderer.render(parts, 0).text.decode()
    return {
        line.rpartition(" ")[0]: line.rpartition(" ")[2]
        for line in text.splitlines()
        if not line.startswith("#")
    }


def values_of(scrape: dict[str, str], name: str) -> list[str]:
    return [value for key, value in scrape.items() if key.startswith(f"{name}{{")]


@pytest.fixture(name="budgeted")
def _budgeted() -> tuple[Renderer, Clock]:
    clock = Clock()
    return Renderer(budget=SeriesBudget(16, limit=100, clock=clock)), clock


def test_a_rare_counter_begins_with_a_zero_that_every_scrape_can_meet(
    budgeted: tuple[Renderer, Clock],
) -> None:
    renderer, clock = budgeted
    name = fabric.PORT_ERRORS.name
    assert values_of(served(renderer, errors(0, 7)), name) == ["7.0"]  # 7 is old news
    assert (
        served(renderer, errors(0, 7))[f'{agent.AGENT_SERIES_LEFT_OUT.name}{{left_out="zero"}}']
        == "1.0"
    )
    clock.now = 100
    fault = errors(3, 7)
    assert values_of(served(renderer, fault), name) == ["0.0", "7.0"]
    clock.now = 115
    assert values_of(served(renderer, fault), name) == ["0.0", "7.0"]
    clock.now = 116
    assert values_of(served(renderer, fault), name) == ["3.0", "7.0"]
    assert values_of(served(renderer, errors(0, 7)), name) == ["0.0", "7.0"]  # a driver's reload


def test_a_gauge_of_a_rare_state_is_served_as_soon_as_it_holds(
    budgeted: tuple[Renderer, Clock],
) -> None:
    renderer, _ = budgeted
    labels = ("0", "GPU-0", "hw_thermal")
    name = gpu.GPU_THROTTLE_ACTIVE.name

    def active(value: float) -> list[str]:
        return values_of(served(renderer, (Reading(gpu.GPU_THROTTLE_ACTIVE, labels, value),)), name)

    assert [active(value) for value in (0, 1, 0)] == [[], ["1.0"], ["0.0"]]


def many(num_ports: int, num_limits: int, num_packets: int) -> tuple[Part, ...]:
    up = tuple(Reading(fabric.NET_UP, (f"eth{i}",), 1) for i in range(num_ports))
    limits = tuple(
        Reading(gpu.GPU_POWER_LIMIT, (str(i), f"GPU-{i}", "min"), 200) for i in range(num_limits)
    )
    packets = tuple(
        Reading(fabric.NET_PACKETS, (f"eth{i}", "receive"), i) for i in range(num_packets)
    )
    return up, limits, packets


def test_detail_is_left_out_in_the_stated_order_and_comes_back_when_there_is_room() -> None:
    renderer = Renderer(budget=SeriesBudget(16, limit=300))

    def names(*sizes: int) -> tuple[int, int, int, set[str]]:
        scrape = served(renderer, *many(*sizes))
        left_out = {key for key in scrape if key.startswith(agent.AGENT_SERIES_LEFT_OUT.name)}
        assert len(scrape) <= 300
        return (
            len(values_of(scrape, fabric.NET_UP.name)),
            len(values_of(scrape, gpu.GPU_POWER_LIMIT.name)),
            len(values_of(scrape, fabric.NET_PACKETS.name)),
            {re.findall(r'"(\w+)"', key)[0] for key in left_out},
        )

    assert names(100, 20, 100) == (100, 20, 100, {"zero", "detail"})
    of_jobs = {"bus", "job_host", "checkpoints", "collectives"}  # first, here there are none
    limits = {"zero", "detail", *of_jobs, "limits"}
    assert names(200, 20, 90) == (200, 0, 90, limits)
    thinned = {*limits, "storage", "packets"}
    assert names(286, 20, 90) == (286, 0, 0, thinned)
    assert names(190, 20, 90) == (190, 0, 0, thinned)  # it would fit, with no room to spare
    assert names(100, 20, 60) == (100, 20, 60, {"zero", "detail"})


def test_ranks_and_verdicts_are_never_left_out() -> None:
    for metrics in series_budget.THINNING.values():
        assert not set(metrics) & set(training.RANK_METRICS)
        assert not [metric for metric in metrics if metric.stability.value == "stable"]
