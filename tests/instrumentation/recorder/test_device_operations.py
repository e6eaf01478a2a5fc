"""Operations of sampled steps on a device, and its numbers, by events that nothing waits for."""

import sys
import time
from pathlib import Path

import pytest
import torch
from trainer_validation.operation_values import operation_values

import lockstep
from lockstep.monitor.step_watch import StepWatch
from lockstep.recorder.device import DeviceNumbers
from lockstep_records.files.operations import (
    FROM_PHASES,
    ON_DEVICE,
)
from lockstep_records.page.reader import read_page

from ..fake_device import FakeEvent, FakeStream, fake_device

LAG_MS = 5.0


class OnDevice(torch.Tensor):
    """A number that claims to be on a GPU."""

    is_cuda = True


def on_fake_device(monitor: lockstep.LiveMonitor, stream: FakeStream) -> None:
    """Gives a monitor a device whose events pass as the stream says."""
    watch = monitor.observer
    assert isinstance(watch, StepWatch)
    monitor.recorder.use_device(fake_device(stream))
    root = torch.zeros((3, 3))
    watch._has_device = True
    watch._numbers = monitor.recorder.numbers = DeviceNumbers(  # as the watch itself does
        lambda: FakeEvent(stream), root, lambda value: isinstance(value, OnDevice)
    )


def attached(root: Path, every: int) -> lockstep.LiveMonitor:
    environment = {"LOCKSTEP_JOB_ID": "job-a", "LOCKSTEP_SAMPLE_EVERY": str(every)}
    monitor = lockstep.attach(root=root, environment=environment, rows=64)
    assert isinstance(monitor, lockstep.LiveMonitor)
    return monitor


def test_device_rows_have_the_same_operations_as_the_host_rows(
    root: Path,
) -> None:
    stream, monitor = FakeStream(), attached(root, 2)
    on_fake_device(monitor, stream)
    for _ in range(9):
        for phase, spent_ms in (("forward", 4.0), ("backward", 8.0), ("optimizer", 1.0)):
            monitor.enter_phase(phase)
            stream.now_ms += spent_ms
        monitor.step()
        stream.passed_ms = stream.now_ms - LAG_MS
    rows = operation_values(root / "jobs/job-a/0/rank-00000.ops")
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
    assert periodic["device_steps"] == 9 - 1
    assert periodic["device_dropped"] == 1


def test_a_loss_on_the_device_is_read_later_with_the_step_it_belongs_to(root: Path) -> None:
    stream, monitor = FakeStream(), attached(root, 0)
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
    stream, monitor = FakeStream(), attached(root, 0)
    on_fake_device(monitor, stream)
    for step in range(10):
        stream.now_ms += 1.0
        monitor.step(loss=torch.tensor(float(step)).as_subclass(OnDevice))
    monitor.close()
    periodic = read_page(root / "jobs/job-a/0/rank-00000.page").periodic
    assert (periodic["device_dropped"], periodic["late_losses"]) == (10 + 7, 0)


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
