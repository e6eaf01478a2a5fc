"""Hangs of ranks that nobody of ours started, judged from their pages; what a bus carries."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lockstep_agent.collectors.bus import Bus
from lockstep_agent.collectors.hangs import Hangs
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.options import Options
from lockstep_agent.recent_events import join_json_lists
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_catalogue import Metric, events, job_watch
from lockstep_records.switches import Switches, write_switches

from .live_page import ALL_REDUCE_BYTES, LivePage

NODE = ("east", "job", "node-7")
DEAD_PID = 0x7FFFFFFF
AHEAD_SECONDS = 3600.0
Values = dict[tuple[Metric, tuple[str, ...]], float]


class Watch:
    """A judge with a clock that a test sets forward."""

    def __init__(self, root: Path, timeout_seconds: float = 120.0) -> None:
        self.later_seconds = 0.0
        pages = PageStore(root, Path("/proc"))
        self.hangs = Hangs(pages, "node-7", Path("/proc"), timeout_seconds, clock_ns=self._now)

    def values(self) -> Values:
        return {(one.metric, one.labels): one.value for one in self.hangs.collect()}

    def hung(self) -> float | None:
        return self.values().get((job_watch.HUNG_RANKS, NODE))

    def events(self) -> list[dict[str, object]]:
        told: list[dict[str, object]] = json.loads(self.hangs.recent.json)
        return told

    def _now(self) -> int:
        return time.monotonic_ns() + int((AHEAD_SECONDS + self.later_seconds) * 1e9)


def stepping(root: Path, ranks: int = 3) -> list[LivePage]:
    """Ranks that have done a step, as every job has that can hang in the second."""
    pages = [LivePage(root, rank=rank, ahead_seconds=AHEAD_SECONDS) for rank in range(ranks)]
    for page in pages:
        page.step(1)
    return pages


def of(values: Values, metric: Metric) -> dict[tuple[str, ...], float]:
    return {labels[3:]: value for (one, labels), value in values.items() if one is metric}


def test_the_rank_that_stands_elsewhere_is_missing_and_the_first_to_stop_is_told(
    root: Path,
) -> None:
    for page, (phase, ago) in zip(
        stepping(root), (("sync", 300), ("backward", 299), ("sync", 298)), strict=True
    ):
        page.phase(phase, ago_seconds=ago)
    values = Watch(root).values()
    assert values[job_watch.HUNG_RANKS, NODE] == 3
    assert of(values, job_watch.HANG_MISSING) == {("1", "backward"): 1}
    assert of(values, job_watch.HANG_FIRST) == {("0", "sync"): pytest.approx(300, abs=5)}


def test_while_steps_go_on_nobody_hangs_and_that_is_told(root: Path) -> None:
    for page in stepping(root):
        page.phase("sync", ago_seconds=100)
    assert Watch(root).values() == {(job_watch.HUNG_RANKS, NODE): 0}


def test_a_hang_is_judged_against_the_jobs_own_steps(root: Path) -> None:
    page = LivePage(root, ahead_seconds=AHEAD_SECONDS)
    for number in range(3):
        page.row(number, seconds=30.0)
        page.step(number)
    page.phase("sync", ago_seconds=500)
    watch = Watch(root)
    assert watch.hung() == 0
    watch.later_seconds = 120
    assert watch.hung() == 1


@pytest.mark.parametrize(("phase", "hung"), [("checkpoint", 0), ("init", 0), ("forward", 1)])
def test_who_may_take_its_time_is_given_it(root: Path, phase: str, hung: int) -> None:
    [page] = stepping(root, ranks=1)
    page.phase(phase, ago_seconds=600)
    assert Watch(root).hung() == hung


def test_others_wait_for_a_rank_whose_process_has_ended_and_it_does_not_hang(root: Path) -> None:
    pages = stepping(root)
    for page in pages:
        page.phase("sync", ago_seconds=200)
    pages[2].replace_identity(pid=DEAD_PID)
    values = Watch(root).values()
    assert values[job_watch.HUNG_RANKS, NODE] == 2
    assert of(values, job_watch.HANG_MISSING) == {("2", "gone"): 1}


def test_a_rank_that_is_stopped_is_missing_though_it_stands_with_the_others(root: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as rank:
        pages = stepping(root)
        for page in pages:
            page.phase("sync", ago_seconds=200)
        pages[1].replace_identity(pid=rank.pid)
        rank.send_signal(signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        watch = Watch(root)
        assert of(watch.values(), job_watch.HANG_MISSING) == {("1", "sync"): 1}
        assert watch.values()[job_watch.HUNG_RANKS, NODE] == 3
        rank.kill()


def test_when_all_wait_the_missing_rank_is_on_another_node(root: Path) -> None:
    for page in stepping(root):
        page.phase("sync", ago_seconds=200)
    watch = Watch(root)
    assert of(watch.values(), job_watch.HANG_MISSING) == {}
    [event] = watch.events()
    assert "all of this node are at the same place" in str(event["text"])


@pytest.mark.parametrize("ending", ["done", "killed"])
def test_a_job_that_has_ended_does_not_hang(root: Path, ending: str) -> None:
    for page in stepping(root):
        if ending == "done":
            page.phase("done", ago_seconds=900)
        else:
            page.phase("sync", ago_seconds=900)
            page.replace_identity(pid=DEAD_PID)
    values = Watch(root).values()
    assert not of(values, job_watch.HANG_FIRST)
    assert values.get((job_watch.HUNG_RANKS, NODE), 0) == 0


def test_a_hang_is_one_event_that_grows_and_ends(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pages = stepping(root)
    for page in pages:
        page.phase("sync" if page is not pages[1] else "data", ago_seconds=200)
    watch = Watch(root)
    watch.values()
    [begun] = watch.events()
    watch.later_seconds = 50
    watch.values()
    [grown] = watch.events()
    assert begun["id"] == grown["id"]
    assert grown["messages"] == 2
    assert float(str(grown["last_seconds"])) - float(str(begun["last_seconds"])) > 49
    again = Watch(root)
    again.values()
    assert again.events()[0]["id"] == begun["id"]
    for page in pages:
        page.phase("data", ago_seconds=-50)
    watch.values()
    [ended] = watch.events()
    assert isinstance(ended["facts"], dict)
    assert {key: ended["facts"][key] for key in ("missing", "first", "lasts")} == {
        "missing": "1",
        "first": "0",
        "lasts": "no",
    }
    assert caplog.text.count("state=hung") == 2  # once of each agent


@pytest.mark.parametrize(("told", "floor", "hung"), [(30.0, 120.0, 1), (0.0, 120.0, None)])
def test_the_floor_of_a_job_is_the_one_of_its_switches(
    root: Path, told: float, floor: float, hung: int | None
) -> None:
    [page] = stepping(root, ranks=1)
    page.phase("sync", ago_seconds=60)
    watch = Watch(root, floor)
    assert watch.hung() == 0
    write_switches(page.path.parents[1], Switches(hang_seconds=told))
    assert watch.hung() == hung


def test_an_agent_that_is_told_so_judges_no_job(root: Path) -> None:
    [page] = stepping(root, ranks=1)
    page.phase("sync", ago_seconds=900)
    assert Watch(root, timeout_seconds=0).values() == {}


def test_a_job_that_vanishes_ends_its_hang(root: Path) -> None:
    [page] = stepping(root, ranks=1)
    page.phase("sync", ago_seconds=900)
    watch = Watch(root)
    assert watch.hung() == 1
    page.path.unlink()
    page.path.parent.rmdir()
    page.path.parents[1].rmdir()
    assert watch.values() == {}
    assert "'lasts': 'no'" in str(watch.events())


def test_hangs_stand_beside_the_incidents_of_the_logs(root: Path, options: Options) -> None:
    page = LivePage(root)
    page.step(1)
    page.phase("forward", ago_seconds=2 * options.hang_timeout_seconds)
    runtime = CollectorRuntime(options)
    Sampler(runtime, 1).sample()
    told = json.loads(runtime.events_json)
    assert {one["metric"] for one in told} >= {
        job_watch.HUNG_RANKS.name,
        events.GPU_XID_INCIDENTS.name,
    }
    assert all(set(one) == set(told[0]) for one in told)


@pytest.mark.parametrize(
    ("lists", "whole"), [([b"[]", b"[]"], []), ([b"[1, 2]", b"[]", b"[3]"], [1, 2, 3])]
)
def test_lists_are_joined(lists: list[bytes], whole: list[int]) -> None:
    assert json.loads(join_json_lists(lists)) == whole


def bus_rate(bus: Bus) -> float | None:
    told = {one.labels: one.value for one in bus.collect()}
    return told.get((*NODE, "all_reduce"))


def carry(page: LivePage, wait_seconds: float, at_ns: int) -> None:
    """Eight steps more with a collective each, both parts of the page written at one moment."""
    for _ in range(8):
        page.writer.periodic.count("bus_bytes", "all_reduce", ALL_REDUCE_BYTES)
        page.writer.count_collective("all_reduce", 1, ALL_REDUCE_BYTES, wait_seconds)
        page.add("steps", 1)
    page.writer.periodic.commit(at_ns)
    page.writer.commit(at_ns)


def test_the_rank_that_waited_least_tells_what_the_bus_carries(root: Path) -> None:
    pages, bus = (
        [LivePage(root, rank=rank) for rank in range(2)],
        Bus(PageStore(root, Path("/proc")), "node-7"),
    )
    assert bus_rate(bus) is None
    began_ns = time.monotonic_ns()
    for wait_seconds, look_ns in ((0.01, 10**10), (0.04, 2 * 10**10)):
        for page, late in zip(pages, (1, 5), strict=True):
            carry(page, late * wait_seconds, began_ns + look_ns)
        assert bus_rate(bus) == pytest.approx(ALL_REDUCE_BYTES / wait_seconds)
    assert bus_rate(bus) == pytest.approx(ALL_REDUCE_BYTES / 0.04)
    of_whole_lives = bus_rate(Bus(PageStore(root, Path("/proc")), "node-7"))
    assert of_whole_lives == pytest.approx(ALL_REDUCE_BYTES / 0.025)
