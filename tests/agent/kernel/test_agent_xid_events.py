"""Xids by the driver's events and by the kernel log: an incident of both sources counts once."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from servers import wait_until

from lockstep_agent.collector import Tier
from lockstep_agent.collectors.gpu.faults import GpuEvents
from lockstep_agent.collectors.node.kernel_log import KernelLog
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.sources.nvml import Driver, Gpu
from lockstep_agent.sources.nvml.device import XidEvent
from lockstep_agent.state_file import StateFile
from lockstep_catalogue import incidents as incident_metrics
from lockstep_cli.gameday.fake_node import FakeNode

ADDRESS = "0000:10:00.0"
NO_LOG = Path("/no/such")
Counts = dict[tuple[str, ...], float]


class Node:
    """A node whose log and driver events a test writes, with a clock of its own."""

    def __init__(self, folder: Path, *, log: bool = True) -> None:
        self.folder, self.kmsg = folder, folder / "kmsg" if log else NO_LOG
        self.now = time.time()
        if log:
            self.kmsg.write_text("")
        self.start_agent()

    def start_agent(self) -> None:
        """Starts an agent with the saved state of the last one."""
        self.pending: list[XidEvent] = []
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
        self.pending.append(XidEvent(ADDRESS, number, instances, self.now))

    def later(self, seconds: float) -> None:
        self.now += seconds

    def line(self, number: int, pid: int = 1, instance: str = "") -> None:
        """Writes a line of dmesg, whose time is local and whole seconds."""
        timestamp = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(self.now))
        with self.kmsg.open("a") as file:
            file.write(
                f"[{timestamp}] NVRM: Xid (PCI:0000:10:00{instance}): {number}, pid={pid}, x\n"
            )

    def counts(self, *, after_seconds: float = 0.0) -> Counts:
        self.now += after_seconds
        return {
            reading.labels: reading.value
            for reading in self.counter.collect()
            if reading.metric is incident_metrics.GPU_XID_INCIDENTS
        }

    def _take(self) -> list[XidEvent]:
        taken, self.pending = self.pending, []
        return taken


def test_without_a_kernel_log_the_events_are_counted(tmp_path: Path) -> None:
    node = Node(tmp_path, log=False)
    node.event(79)
    node.event(94, 3, 0)
    assert node.counts() == {}
    assert node.counts(after_seconds=2) == {(ADDRESS, "", "79"): 1, (ADDRESS, "03/00", "94"): 1}
    recent = json.loads(node.counter.recent.json)
    assert [incident["facts"] for incident in recent] == [{"witness": "nvml"}] * 2


ONE = {(ADDRESS, "", "48"): 1}
TWO_PROCESSES = [("line", 13, 7), ("event", 13), ("line", 13, 8), ("event", 13)]


@pytest.mark.parametrize(
    ("has_log", "steps", "counts"),
    [
        # One of both sources counts once, whichever comes first.
        (True, [("line", 48), 3, ("event", 48), 3, 3], ONE),
        (True, [("event", 48), 3, ("line", 48), 3, 3], ONE),
        # An event that is read ten seconds late adds none to the log's incidents.
        (True, [("line", 48), 0, ("later", 0.5), ("event", 48), 3, 3], ONE),
        (True, [("line", 48), 0, ("later", 10), ("event", 48), 3, 3], ONE),
        (True, [("line", 48), 0, ("later", 11), ("event", 48), 3, 3], ONE),
        # Two processes in the log are two incidents, and their events add none.
        (True, [("event", 13), 3, *TWO_PROCESSES, 1, 3], {(ADDRESS, "", "13"): 2}),
        # An instance that only the log names is no second incident.
        (True, [("line", 94, 1, " GPU-I:05"), ("event", 94), 3], {(ADDRESS, "05", "94"): 1}),
        # Events are one incident until a quiet time has passed.
        (False, [("event", 48), 3, ("later", 200), ("event", 48), 3], ONE),
        (False, [("event", 48), 3, ("later", 400), ("event", 48), 3], {(ADDRESS, "", "48"): 2}),
    ],
)
def test_incidents_count_once(
    tmp_path: Path, has_log: bool, steps: list[Any], counts: Counts
) -> None:
    """A step is what is written, or the seconds after which the agent counts."""
    node = Node(tmp_path, log=has_log)
    for step in steps:
        if isinstance(step, tuple):
            getattr(node, step[0])(*step[1:])
        else:
            counted = node.counts(after_seconds=step)
    assert counted == counts


def test_a_restart_between_the_two_sources_counts_nothing_twice(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.event(79)
    assert node.counts(after_seconds=3) == {(ADDRESS, "", "79"): 1}
    node.line(79)
    node.start_agent()
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


def take_xids(gpu: Gpu, collector: GpuEvents) -> list[tuple[str, int, tuple[int, ...]]] | None:
    assert list(collector.collect()) == []
    if gpu.xids is None:
        return None
    xids = [(event.address, event.number, event.instances) for event in gpu.xids]
    gpu.xids.clear()
    return xids


def test_a_driver_reports_the_events_since_the_registration(node: FakeNode, gpu: Gpu) -> None:
    node.set(0, "event.1", "31")
    collector = GpuEvents(gpu)
    assert take_xids(gpu, collector) == []
    node.set(0, "event.2", "13 3 0")
    node.set(0, "event.3", "48")
    assert take_xids(gpu, collector) == [(ADDRESS, 13, (3, 0)), (ADDRESS, 48, ())]
    assert take_xids(gpu, collector) == []


def test_the_xid_of_a_lost_gpu_is_still_read_and_the_gpu_is_registered_again(
    node: FakeNode, gpu: Gpu
) -> None:
    collector = GpuEvents(gpu)
    assert take_xids(gpu, collector) == []
    node.change(0, lost=15, event__1="79")
    assert gpu.nvml is not None
    gpu.drop_silent_handle()
    assert take_xids(gpu, collector) == [(ADDRESS, 79, ())]
    node.change(0, lost=None, event__2="154")
    assert take_xids(gpu, collector) == [(ADDRESS, 154, ())]
    node.set(0, "event.3", "48")
    assert take_xids(gpu, collector) == [(ADDRESS, 48, ())]


@pytest.mark.parametrize("event_types", [None, 16, "!3"])
def test_a_driver_without_xid_events_is_no_source(
    node: FakeNode, gpu: Gpu, event_types: float | str | None
) -> None:
    node.set(0, "nvmlDeviceGetSupportedEventTypes", event_types)
    node.set(0, "event.1", "48")
    assert take_xids(gpu, GpuEvents(gpu)) is None


def test_an_agent_without_a_kernel_log_counts_by_events(
    options: Options, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GpuEvents, "tier", Tier.EVERY_TICK)  # ten seconds are too long for a test
    runtime = CollectorRuntime(replace(options, kmsg=NO_LOG))
    sampler = Sampler(runtime, 1)
    assert f'{incident_metrics.LOG_READ.name}{{log="kernel"}}' not in sampler.sample().text.decode()
    node.set(0, "event.1", "79")
    counted = (
        f'{incident_metrics.GPU_XID_INCIDENTS.name}{{mig="",pci_bus_id="{ADDRESS}",xid="79"}} 1.0'
    )
    text = wait_until(
        lambda: text if counted in (text := sampler.sample().text.decode()) else "", 30, pause=0.2
    )
    assert f'{incident_metrics.LOG_READ.name}{{log="nvml"}} 1.0' in text
    assert json.loads(runtime.events_json)[-1]["labels"]["xid"] == "79"
