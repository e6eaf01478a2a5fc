"""Xids by the driver's events beside the kernel log: an incident counts once, whoever tells it."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep_agent.collector import Tier
from lockstep_agent.collectors.gpu_events import GpuEvents
from lockstep_agent.collectors.kernel_log import KernelLog
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.sources.nvml import Driver, Gpu
from lockstep_agent.sources.xid_event import XidEvent
from lockstep_agent.state_file import StateFile
from lockstep_catalogue import events

from .fake_node import FakeNode

ADDRESS = "0000:10:00.0"
NO_LOG = Path("/no/such")
Counts = dict[tuple[str, ...], float]


class Node:
    """The counter of a node whose log and whose events a test writes, with a clock of its own."""

    def __init__(self, folder: Path, *, log: bool = True) -> None:
        self.folder, self.kmsg = folder, folder / "kmsg" if log else NO_LOG
        self.now = time.time()
        if log:
            self.kmsg.write_text("")
        self.begin()

    def begin(self) -> None:
        """Starts an agent, with what the last one kept."""
        self.heard: list[XidEvent] = []
        state = StateFile(self.folder / "state.json")
        logs = {"kernel": self.kmsg}
        self.counter = KernelLog(
            logs,
            self.folder / "boot",
            self.folder,
            state,
            take_xids=self._take,
            clock=lambda: self.now,
        )

    def event(self, number: int, *instances: int) -> None:
        self.heard.append(XidEvent(ADDRESS, number, instances, self.now))

    def line(self, number: int, pid: int = 1, instance: str = "") -> None:
        """A line of dmesg, which tells its local time to the second."""
        told = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(self.now))
        with self.kmsg.open("a") as file:
            file.write(f"[{told}] NVRM: Xid (PCI:0000:10:00{instance}): {number}, pid={pid}, x\n")

    def counts(self, *, after_seconds: float = 0.0) -> Counts:
        self.now += after_seconds
        told = list(self.counter.collect())
        return {one.labels: one.value for one in told if one.metric is events.GPU_XID_INCIDENTS}

    def _take(self) -> list[XidEvent]:
        taken, self.heard = self.heard, []
        return taken


def test_without_a_kernel_log_the_events_are_counted(tmp_path: Path) -> None:
    node = Node(tmp_path, log=False)
    node.event(79)
    node.event(94, 3, 0)
    assert node.counts() == {}
    assert node.counts(after_seconds=2) == {
        (ADDRESS, "", "79"): 1,
        (ADDRESS, "03/00", "94"): 1,
    }
    recent = json.loads(node.counter.recent.json)
    assert [one["facts"] for one in recent] == [{"witness": "nvml"}] * 2


@pytest.mark.parametrize("first", ["line", "event"])
def test_what_both_tell_is_one_incident_whichever_comes_first(tmp_path: Path, first: str) -> None:
    node = Node(tmp_path)
    for teller in (first, "line" if first == "event" else "event"):
        getattr(node, teller)(48)
        node.counts(after_seconds=3)
    assert node.counts(after_seconds=3) == {(ADDRESS, "", "48"): 1}


@pytest.mark.parametrize("late_seconds", [0.5, 10, 11])
def test_an_event_that_is_heard_only_after_ten_seconds_adds_none_to_what_the_log_told(
    tmp_path: Path, late_seconds: float
) -> None:
    node = Node(tmp_path)
    node.line(48)
    assert node.counts() == {(ADDRESS, "", "48"): 1}
    node.now += late_seconds
    node.event(48)
    assert node.counts(after_seconds=3) == {(ADDRESS, "", "48"): 1}
    assert node.counts(after_seconds=3) == {(ADDRESS, "", "48"): 1}


def test_two_processes_in_the_log_are_two_incidents_and_their_events_add_none(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.event(13)
    node.counts(after_seconds=3)
    for pid in (7, 8):
        node.line(13, pid)
        node.event(13)
    node.counts(after_seconds=1)
    assert node.counts(after_seconds=3) == {(ADDRESS, "", "13"): 2}


def test_an_instance_that_only_the_log_names_is_no_second_incident(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.line(94, instance=" GPU-I:05")
    node.event(94)
    assert node.counts(after_seconds=3) == {(ADDRESS, "05", "94"): 1}


@pytest.mark.parametrize(("apart_seconds", "incidents"), [(200, 1), (400, 2)])
def test_events_belong_together_until_a_quiet_time_has_passed(
    tmp_path: Path, apart_seconds: float, incidents: int
) -> None:
    node = Node(tmp_path, log=False)
    node.event(48)
    node.counts(after_seconds=3)
    node.now += apart_seconds
    node.event(48)
    assert node.counts(after_seconds=3) == {(ADDRESS, "", "48"): incidents}


def test_a_restart_between_the_two_witnesses_counts_nothing_twice(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.event(79)
    assert node.counts(after_seconds=3) == {(ADDRESS, "", "79"): 1}
    node.line(79)
    node.begin()
    assert node.counts(after_seconds=3) == {(ADDRESS, "", "79"): 1}
    node.event(79)
    assert node.counts(after_seconds=3) == {(ADDRESS, "", "79"): 1}
    [_, log] = json.loads(node.counter.recent.json)
    assert (log["log"], log["counted"]) == ("kernel", False)


@pytest.fixture(name="gpu")
def _gpu(node: FakeNode, nvml_library: Path) -> Iterator[Gpu]:
    assert node.path.exists()
    driver = Driver(nvml_library)
    yield driver.gpus[0]
    driver.close()


def heard(gpu: Gpu, collector: GpuEvents) -> list[tuple[str, int, tuple[int, ...]]] | None:
    assert list(collector.collect()) == []
    if gpu.xids is None:
        return None
    told = [(one.address, one.number, one.instances) for one in gpu.xids]
    gpu.xids.clear()
    return told


def test_a_driver_tells_what_happened_since_the_registration(node: FakeNode, gpu: Gpu) -> None:
    node.set(0, "event.1", "31")
    collector = GpuEvents(gpu)
    assert heard(gpu, collector) == []
    node.set(0, "event.2", "13 3 0")
    node.set(0, "event.3", "48")
    assert heard(gpu, collector) == [(ADDRESS, 13, (3, 0)), (ADDRESS, 48, ())]
    assert heard(gpu, collector) == []


def test_the_xid_by_which_a_gpu_is_lost_is_still_heard_and_it_is_registered_anew(
    node: FakeNode, gpu: Gpu
) -> None:
    collector = GpuEvents(gpu)
    assert heard(gpu, collector) == []
    node.change(0, lost=15, event__1="79")
    assert gpu.nvml is not None
    gpu.silent()
    assert heard(gpu, collector) == [(ADDRESS, 79, ())]
    node.change(0, lost=None, event__2="154")
    assert heard(gpu, collector) == [(ADDRESS, 154, ())]
    node.set(0, "event.3", "48")
    assert heard(gpu, collector) == [(ADDRESS, 48, ())]


@pytest.mark.parametrize("told", [None, 16, "!3"])
def test_a_driver_without_such_events_is_no_witness(
    node: FakeNode, gpu: Gpu, told: float | str | None
) -> None:
    node.set(0, "nvmlDeviceGetSupportedEventTypes", told)
    node.set(0, "event.1", "48")
    assert heard(gpu, GpuEvents(gpu)) is None


def test_an_agent_without_a_kernel_log_counts_by_events(
    options: Options, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GpuEvents, "tier", Tier.EVERY_TICK)  # ten seconds are long for a test
    runtime = CollectorRuntime(replace(options, kmsg=NO_LOG))
    sampler = Sampler(runtime, 1)
    assert f'{events.LOG_READ.name}{{log="kernel"}}' not in sampler.sample().text.decode()
    node.set(0, "event.1", "79")
    counted = f'{events.GPU_XID_INCIDENTS.name}{{mig="",pci_bus_id="{ADDRESS}",xid="79"}} 1.0'
    deadline = time.monotonic() + 10
    while counted not in (text := sampler.sample().text.decode()):
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    assert f'{events.LOG_READ.name}{{log="nvml"}} 1.0' in text
    assert json.loads(runtime.events_json)[-1]["labels"]["xid"] == "79"
