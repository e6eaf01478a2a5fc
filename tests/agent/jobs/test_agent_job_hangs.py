"""Hangs of ranks that Lockstep did not start, judged from their pages; bus bandwidth."""

import json
import time
from pathlib import Path

import pytest

from lockstep_agent.collector import Reading
from lockstep_agent.collectors.jobs.bus import Bus
from lockstep_agent.collectors.jobs.hangs import Hangs
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_catalogue import Metric, incidents, training
from lockstep_outcomes.progress.hangs import HangTimeouts
from lockstep_records.files.switches import Switches, write_switches

from ..live_page import ALL_REDUCE_BYTES, LivePage

NODE = ("east", "job", "node-7")
DEAD_PID = 0x7FFFFFFF
AHEAD_SECONDS = 3600.0
Values = dict[tuple[Metric, tuple[str, ...]], float]


class HangFixture:
    """The collector of hangs with a clock that a test sets forward."""

    def __init__(self, root: Path, timeout_seconds: float = 120.0) -> None:
        self.later_seconds = 0.0
        pages = PageStore(root, Path("/proc"), cluster="east")
        timeouts = HangTimeouts(step_seconds=timeout_seconds)
        self.hangs = Hangs(pages, "node-7", Path("/proc"), timeouts, clock_ns=self._now)

    def values(self) -> Values:
        readings = self.hangs.collect()
        return {(r.metric, r.labels): r.value for r in readings if isinstance(r, Reading)}

    def hung(self) -> float | None:
        return self.values().get((training.HUNG_RANKS, NODE))

    def events(self) -> list[dict[str, object]]:
        events: list[dict[str, object]] = json.loads(self.hangs.recent.json)
        return events

    def _now(self) -> int:
        return time.monotonic_ns() + int((AHEAD_SECONDS + self.later_seconds) * 1e9)


def stepping(root: Path, ranks: int = 3) -> list[LivePage]:
    """Ranks that have completed a step: before it a hang takes ten times as long."""
    pages = [LivePage(root, rank=rank, ahead_seconds=AHEAD_SECONDS) for rank in range(ranks)]
    for page in pages:
        page.step(1)
    return pages


def values_of(values: Values, metric: Metric) -> dict[tuple[str, ...], float]:
    """The values of one metric by the labels behind those of the job and the node."""
    return {labels[3:]: value for (each, labels), value in values.items() if each is metric}


def test_the_rank_outside_of_sync_is_missing_and_the_first_to_stop_is_named(root: Path) -> None:
    for page, (phase, ago) in zip(
        stepping(root), (("sync", 300), ("backward", 299), ("sync", 298)), strict=True
    ):
        page.phase(phase, ago_seconds=ago)
    values = HangFixture(root).values()
    assert values[training.HUNG_RANKS, NODE] == 3
    assert values_of(values, training.HANG_MISSING) == {
        ("1", "backward", "outside_of_waits", ""): 1
    }
    assert values_of(values, training.HANG_FIRST) == {("0", "sync"): pytest.approx(300, abs=5)}


def test_while_steps_continue_zero_ranks_hang(root: Path) -> None:
    for page in stepping(root):
        page.phase("sync", ago_seconds=100)
    assert HangFixture(root).values() == {(training.HUNG_RANKS, NODE): 0}


def test_others_wait_for_a_rank_whose_process_has_ended_and_it_does_not_hang(root: Path) -> None:
    pages = stepping(root)
    for page in pages:
        page.phase("sync", ago_seconds=200)
    pages[2].replace_identity(pid=DEAD_PID)
    values = HangFixture(root).values()
    assert values[training.HUNG_RANKS, NODE] == 2
    assert values_of(values, training.HANG_MISSING) == {("2", "gone", "process_not_running", ""): 1}


def test_when_all_wait_the_missing_rank_is_on_another_node(root: Path) -> None:
    for page in stepping(root):
        page.phase("sync", ago_seconds=200)
    hangs = HangFixture(root)
    assert values_of(hangs.values(), training.HANG_MISSING) == {}
    [event] = hangs.events()
    assert "all 3 ranks that are seen here wait, of 4" in str(event["text"])


@pytest.mark.parametrize("ending", ["done", "killed"])
def test_a_job_that_has_ended_does_not_hang(root: Path, ending: str) -> None:
    for page in stepping(root):
        if ending == "done":
            page.phase("done", ago_seconds=900)
        else:
            page.phase("sync", ago_seconds=900)
            page.replace_identity(pid=DEAD_PID)
    values = HangFixture(root).values()
    assert not values_of(values, training.HANG_FIRST)
    assert values.get((training.HUNG_RANKS, NODE), 0) == 0


def test_a_hang_is_an_event_that_grows_and_ends(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pages = stepping(root)
    for page in pages:
        page.phase("sync" if page is not pages[1] else "data", ago_seconds=200)
    hangs = HangFixture(root)
    hangs.values()
    [begun] = hangs.events()
    hangs.later_seconds = 50
    hangs.values()
    [grown] = hangs.events()
    assert begun["id"] == grown["id"]
    assert grown["messages"] == 2
    assert float(str(grown["last_seconds"])) - float(str(begun["last_seconds"])) > 49
    again = HangFixture(root)
    again.values()
    assert again.events()[0]["id"] == begun["id"]
    for page in pages:
        page.phase("data", ago_seconds=-50)
    hangs.values()
    [ended] = hangs.events()
    assert isinstance(ended["facts"], dict)
    assert {key: ended["facts"][key] for key in ("missing", "first", "lasts")} == {
        "missing": "1",
        "first": "0",
        "lasts": "no",
    }
    assert caplog.text.count("state=hung") == 2  # once of each agent


@pytest.mark.parametrize(
    ("own_seconds", "agent_seconds", "hung"), [(30.0, 120.0, 1), (0.0, 120.0, None)]
)
def test_the_time_out_of_a_job_is_the_one_of_its_switches(
    root: Path, own_seconds: float, agent_seconds: float, hung: int | None
) -> None:
    [page] = stepping(root, ranks=1)
    page.phase("sync", ago_seconds=60)
    hangs = HangFixture(root, agent_seconds)
    assert hangs.hung() == 0
    write_switches(page.path.parents[1], Switches(hang_seconds=own_seconds))
    assert hangs.hung() == hung


def test_an_agent_with_a_time_out_of_zero_judges_no_job(root: Path) -> None:
    [page] = stepping(root, ranks=1)
    page.phase("sync", ago_seconds=900)
    assert HangFixture(root, timeout_seconds=0).values() == {}


def test_a_job_that_vanishes_ends_its_hang(root: Path) -> None:
    [page] = stepping(root, ranks=1)
    page.phase("sync", ago_seconds=900)
    hangs = HangFixture(root)
    assert hangs.hung() == 1
    page.path.unlink()
    page.path.parent.rmdir()
    page.path.parents[1].rmdir()
    assert hangs.values() == {}
    assert "'lasts': 'no'" in str(hangs.events())


def test_hangs_are_served_with_the_incidents_of_the_logs(root: Path, options: Options) -> None:
    page = LivePage(root)
    page.step(1)
    page.phase("forward", ago_seconds=2 * options.hang_timeout_seconds)
    runtime = CollectorRuntime(options)
    Sampler(runtime, 1).sample()
    recent = json.loads(runtime.events_json)
    assert {event["metric"] for event in recent} >= {
        training.HUNG_RANKS.name,
        incidents.GPU_XID_INCIDENTS.name,
    }
    assert all(set(event) == set(recent[0]) for event in recent)


def bus_rate(bus: Bus) -> float | None:
    readings = bus.collect()
    rates = {r.labels: r.value for r in readings if isinstance(r, Reading)}
    return rates.get((*NODE, "all_reduce"))


def carry(page: LivePage, wait_seconds: float, at_ns: int) -> None:
    """Eight steps more with a collective each, both parts of the page written at one moment."""
    for _ in range(8):
        page.writer.periodic.count("bus_bytes", "all_reduce", ALL_REDUCE_BYTES)
        page.writer.count_collective("all_reduce", 1, ALL_REDUCE_BYTES, wait_seconds)
        page.add("steps", 1)
    page.writer.periodic.commit(at_ns)
    page.writer.commit(at_ns)


def test_the_bus_bandwidth_is_that_of_the_rank_that_waited_least(root: Path) -> None:
    pages, bus = (
        [LivePage(root, rank=rank) for rank in range(2)],
        Bus(PageStore(root, Path("/proc"), cluster="east"), "node-7"),
    )
    assert bus_rate(bus) is None
    start_ns = time.monotonic_ns()
    for wait_seconds, poll_ns in ((0.01, 10**10), (0.04, 2 * 10**10)):
        for page, late in zip(pages, (1, 5), strict=True):
            carry(page, late * wait_seconds, start_ns + poll_ns)
        assert bus_rate(bus) == pytest.approx(ALL_REDUCE_BYTES / wait_seconds, rel=1e-4)
    assert bus_rate(bus) == pytest.approx(ALL_REDUCE_BYTES / 0.04, rel=1e-4)
    since_creation = bus_rate(Bus(PageStore(root, Path("/proc"), cluster="east"), "node-7"))
    assert since_creation == pytest.approx(ALL_REDUCE_BYTES / 0.025, rel=1e-4)
