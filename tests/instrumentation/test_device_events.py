"""Device time of sampled steps and numbers of a device, by events that nothing waits for."""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.monitor.step_watch import StepWatch
from lockstep.recorder.device_events import DeviceEvents, PhaseOperation
from lockstep.recorder.device_numbers import DeviceNumbers
from lockstep_records.operations import FROM_PHASES, ON_DEVICE, operation_values, read_operations
from lockstep_records.page.reader import read_page

LAG_MS = 5.0


class Stream:
    """The stream of a device; an event passes when the test says so."""

    def __init__(self) -> None:
        self.now_ms, self.passed_ms, self.num_events = 0.0, -1.0, 0

    def event(self) -> "FakeEvent":
        self.num_events += 1
        return FakeEvent(self)


class FakeEvent:
    """As torch.cuda.Event; to wait for it, or to ask it too early, fails the test."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.at_ms: float | None = None

    def record(self) -> None:
        self.at_ms = self._stream.now_ms

    def query(self) -> bool:
        return self.at_ms is not None and self.at_ms <= self._stream.passed_ms

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        assert self.query()
        assert end_event.query()
        assert self.at_ms is not None
        assert end_event.at_ms is not None
        return end_event.at_ms - self.at_ms

    def synchronize(self) -> None:
        pytest.fail("nobody may wait for an event")

    wait = synchronize


class OnDevice(torch.Tensor):
    """A number that claims to be on a GPU."""

    is_cuda = True


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def record_step(events: DeviceEvents, stream: Stream, step: int, *spent_ms: float) -> None:
    """Host boundaries are a nanosecond apart: the device runs behind all of them."""
    events.begin(step, step * 1000)
    for boundary, spent in enumerate(spent_ms[:-1], 1):
        stream.now_ms += spent
        events.enter_phase(step * 1000 + boundary)
    stream.now_ms += spent_ms[-1]
    events.end(step * 1000 + len(spent_ms), range(len(spent_ms)), [PhaseOperation(0, 0, 0, 0, -1)])


def test_a_step_is_returned_once_the_device_has_passed_it_and_not_before() -> None:
    stream = Stream()
    events = DeviceEvents(stream.event)
    record_step(events, stream, 7, 2.0, 3.0)
    assert events.is_pending
    assert events.poll() is None
    stream.passed_ms = 4.9
    assert events.poll() is None
    stream.passed_ms = 5.0
    passed = events.poll()
    assert passed is not None
    assert passed.step == 7
    first, second, third = passed.boundaries_ns
    assert (second - first, third - second) == (2_000_000, 3_000_000)
    assert first == 7000
    assert not events.is_pending


def test_a_device_that_waits_for_the_host_is_dated_by_the_hosts_clock() -> None:
    stream = Stream()
    events = DeviceEvents(stream.event)
    events.begin(0, 0)
    stream.now_ms = 1.0
    events.enter_phase(9_000_000)
    stream.now_ms = 2.0
    events.end(9_500_000, (1, 2), ())
    stream.passed_ms = 2.0
    passed = events.poll()
    assert passed is not None
    assert list(passed.boundaries_ns) == [8_000_000, 9_000_000, 10_000_000]


def test_steps_that_pass_too_late_are_dropped_and_counted_and_the_pool_stays_bounded() -> None:
    stream = Stream()
    events = DeviceEvents(stream.event, max_events=12, max_steps=2)
    for step in range(100):
        record_step(events, stream, step, 1.0, 1.0)
    assert events.dropped == 98
    assert stream.num_events <= 12
    stream.passed_ms = stream.now_ms
    device_steps = [events.poll(), events.poll(), events.poll()]
    assert [each.step if each else None for each in device_steps] == [98, 99, None]


def test_a_step_with_more_boundaries_than_the_pool_has_events_is_dropped_alone() -> None:
    stream = Stream()
    events = DeviceEvents(stream.event, max_events=5)
    record_step(events, stream, 0, *[1.0] * 9)
    record_step(events, stream, 1, 1.0, 1.0)
    stream.passed_ms = stream.now_ms
    passed = events.poll()
    assert passed is not None
    assert (passed.step, events.dropped) == (1, 1)


def test_a_stream_that_captures_a_graph_takes_no_events() -> None:
    stream, is_capturing = Stream(), True
    events = DeviceEvents(stream.event, lambda: is_capturing)
    record_step(events, stream, 0, 1.0)
    assert (stream.num_events, events.dropped, events.is_pending) == (0, 1, False)


def test_a_device_that_fails_costs_the_sample_and_not_the_training() -> None:
    class Broken(FakeEvent):
        def record(self) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    stream = Stream()
    events = DeviceEvents(lambda: Broken(stream))
    record_step(events, stream, 0, 1.0)
    assert (events.dropped, events.is_pending) == (1, False)


def on_fake_device(monitor: lockstep.LiveMonitor, stream: Stream) -> None:
    """Gives a monitor a device whose events pass as the stream says."""
    watch = monitor.observer
    assert isinstance(watch, StepWatch)
    assert watch.operations is not None
    watch.operations.device = DeviceEvents(stream.event)
    memory = torch.zeros((3, 3))
    watch._numbers = monitor.recorder.numbers = DeviceNumbers(  # as the watch itself does
        stream.event, memory, lambda value: isinstance(value, OnDevice)
    )


def attached(root: Path, every: int) -> lockstep.LiveMonitor:
    environment = {"LOCKSTEP_JOB_ID": "job-a", "LOCKSTEP_SAMPLE_EVERY": str(every)}
    monitor = lockstep.attach(root=root, environment=environment, rows=64)
    assert isinstance(monitor, lockstep.LiveMonitor)
    return monitor


def test_device_rows_have_the_same_operations_as_the_host_rows(
    root: Path,
) -> None:
    stream, monitor = Stream(), attached(root, 2)
    on_fake_device(monitor, stream)
    for _ in range(9):
        for phase, spent_ms in (("forward", 4.0), ("backward", 8.0), ("optimizer", 1.0)):
            monitor.enter_phase(phase)
            stream.now_ms += spent_ms
        monitor.step()
        stream.passed_ms = stream.now_ms - LAG_MS
    rows = operation_values(read_operations(root / "jobs/job-a/0/rank-00000.ops"))
    by_device = [row for row in rows if row["flags"] == FROM_PHASES | ON_DEVICE]
    by_host = [row for row in rows if row["flags"] == FROM_PHASES]
    assert sorted({row["step"] for row in by_device}) == [2, 4, 6]
    assert sorted({row["step"] for row in by_host}) == [2, 4, 6, 8]
    durations = [(row["operation"], row["duration_ns"]) for row in by_device if row["step"] == 4]
    assert durations == [
        ("forward-compute", 4_000_000),
        ("backward-compute", 8_000_000),
        ("optimizer", 1_000_000),
    ]
    assert [row["micro_batch"] for row in by_device[:3]] == [0, 0, None]
    monitor.close()
    periodic = read_page(root / "jobs/job-a/0/rank-00000.page").periodic
    assert periodic["device_steps"] == 3
    assert periodic["device_dropped"] == 0


def test_a_loss_on_the_device_is_read_later_with_the_step_it_belongs_to(root: Path) -> None:
    stream, monitor = Stream(), attached(root, 0)
    on_fake_device(monitor, stream)
    for step in range(6):
        stream.now_ms += 10.0
        loss = torch.tensor(float("nan") if step == 2 else 1.0 + step)
        monitor.step(loss=loss.as_subclass(OnDevice), gradient_norm=0.5 + step)
        stream.passed_ms = stream.now_ms - 2 * LAG_MS
    monitor.close()
    page = read_page(root / "jobs/job-a/0/rank-00000.page")
    steps = page.periodic["late_loss_step"][: page.periodic["late_losses"]]
    assert list(steps) == [0, 1, 2, 3]
    assert page.periodic["late_loss"][1] == 2.0
    assert page.state["loss"] == 4.0
    assert page.state["gradient_norm"] == 5.5
    assert page.periodic["nonfinite"]["loss"] == 1
    assert page.state["nonfinite_steps"] == 1


def test_numbers_that_find_no_free_row_are_dropped_and_counted(root: Path) -> None:
    stream, monitor = Stream(), attached(root, 0)
    on_fake_device(monitor, stream)
    for step in range(10):
        stream.now_ms += 1.0
        monitor.step(loss=torch.tensor(float(step)).as_subclass(OnDevice))
    monitor.close()
    periodic = read_page(root / "jobs/job-a/0/rank-00000.page").periodic
    assert (periodic["device_dropped"], periodic["late_losses"]) == (7, 0)


def test_a_process_without_a_gpu_reads_no_device(root: Path) -> None:
    monitor = attached(root, 2)
    monitor.step(loss=torch.tensor(1.5))
    assert monitor.recorder.numbers is None
    monitor.close()
    assert read_page(root / "jobs/job-a/0/rank-00000.page").state["loss"] == 1.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nothing_waits_for_the_gpu_through_200_steps_and_its_time_is_recorded(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(256, 1024, device="cuda")

    def steps(monitor: lockstep.Monitor, number: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        with monitor.phase("other"):
            torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(number):
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                monitor.step(loss=loss)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return (time.perf_counter() - began) / number

    bare = min(steps(lockstep.disabled(), 200) for _ in range(3))
    environment = {"LOCKSTEP_JOB_ID": "job-a", "LOCKSTEP_SAMPLE_EVERY": "4"}
    monitor = lockstep.attach(model, optimizer, root=root, environment=environment)
    watched = [steps(monitor, 200) for _ in range(3)]
    monitor.close()
    periodic = read_page(root / "jobs/job-a/0/rank-00000.page").periodic
    lines = (
        f"bare {bare * 1e6:.1f} us a step, watched {min(watched) * 1e6:.1f} us",
        f"device: {periodic['device_steps']} steps",
        f"late losses {periodic['late_losses']}, dropped {periodic['device_dropped']}",
    )
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert periodic["device_steps"] > 100
    assert periodic["late_losses"] > 500
