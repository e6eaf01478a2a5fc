"""Operations of sampled steps on a device, and its numbers, by events that nothing waits for."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from trainer_validation.operation_values import operation_values

import lockstep
from lockstep.monitor.step_watch import StepWatch
from lockstep.recorder.device import ALLOWANCE_NS
from lockstep_records.files.operations import FROM_PHASES, ON_DEVICE
from lockstep_records.page.reader import read_page
from lockstep_reports.readers.pages import read_pages

from ..fake_device import FakeStream, OnDevice, calls, fake_device

LAG_MS = 5.0


def on_fake_device(monitor: lockstep.LiveMonitor, stream: FakeStream) -> None:
    """Gives a monitor a device whose events pass as the stream says."""
    watch = monitor.observer
    assert isinstance(watch, StepWatch)
    monitor.recorder.use_device(fake_device(stream))
    watch._has_device = True


def attached(root: Path, every: int) -> lockstep.LiveMonitor:
    environment = {"LOCKSTEP_JOB_ID": "job-a", "LOCKSTEP_SAMPLE_EVERY": str(every)}
    monitor = lockstep.attach(root=root, environment=environment, rows=256)
    assert isinstance(monitor, lockstep.LiveMonitor)
    return monitor


def test_device_rows_have_the_same_operations_as_the_host_rows(root: Path) -> None:
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


def test_in_a_report_a_timed_step_represents_those_up_to_the_next(root: Path) -> None:
    stream, monitor = FakeStream(), attached(root, 0)
    monitor.recorder.use_device(fake_device(stream, allowance_ns=ALLOWANCE_NS))
    for step in range(200):
        for phase, spent_ms in (("forward", 4.0), ("backward", 8.0), ("optimizer", 1.0)):
            monitor.enter_phase(phase)
            stream.work(spent_ms)
        if step == 101:
            monitor.enter_phase("checkpoint")
            time.sleep(0.02)
        monitor.step()
        stream.passed_ms = stream.now_ms
    monitor.close()
    steps, (page,) = read_pages(root / "jobs/job-a/0")
    stride = page.periodic["device_stride"]
    assert stride > 1
    assert steps.weights is not None
    assert steps.weights.sum() == 200
    assert set(steps.numbers[-9:]) <= {101, *range(0, 200, stride)}
    [pause] = np.flatnonzero(steps.numbers == 101)
    assert steps.phases["checkpoint"][0, pause] >= 0.02
    assert steps.sum_over_columns(steps.phases["backward"]).sum() == pytest.approx(1.6, rel=0.02)
    assert any(f"One step in {stride} was timed" in note for note in steps.notes)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_loss_on_the_device_is_read_within_a_second_with_the_step_it_belongs_to(
    root: Path, kind: torch.dtype
) -> None:
    stream, monitor = FakeStream(), attached(root, 0)
    on_fake_device(monitor, stream)
    page = root / "jobs/job-a/0/rank-00000.page"
    for step in range(6):
        stream.work(10.0)
        loss = torch.tensor(float("nan") if step == 2 else 1.0 + step, dtype=kind)
        monitor.step(loss=loss.as_subclass(OnDevice), gradient_norm=0.5 + step)
        stream.passed_ms = stream.now_ms
    time.sleep(0.3)
    for _ in range(2):  # the copy is started in the one, and read in the next
        monitor.step(loss=torch.tensor(9.0, dtype=kind).as_subclass(OnDevice))
        stream.passed_ms = stream.now_ms
    monitor.enter_phase("forward")
    assert read_page(page).state["nonfinite_steps"] == 1
    monitor.close()
    read = read_page(page)
    assert list(read.periodic["late_loss_step"]) == list(range(8))
    assert list(read.periodic["late_loss"][3:]) == [4.0, 5.0, 6.0, 9.0, 9.0]
    assert read.periodic["nonfinite"]["loss"] == 1
    assert read.state["loss"] == 9.0
    assert read.state["gradient_norm"] == 5.5


def test_numbers_that_find_no_free_row_are_dropped_and_counted(root: Path) -> None:
    stream, monitor = FakeStream(), attached(root, 0)
    on_fake_device(monitor, stream)
    for step in range(70):
        stream.work(1.0)
        monitor.step(loss=torch.tensor(float(step)).as_subclass(OnDevice))
    monitor.close()
    periodic = read_page(root / "jobs/job-a/0/rank-00000.page").periodic
    assert (periodic["device_dropped"], periodic["late_losses"]) == (70 + 6, 0)


def test_losses_of_a_device_that_cannot_be_taken_in_cost_that_part_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, monitor = FakeStream(), attached(root, 0)
    on_fake_device(monitor, stream)
    monkeypatch.setattr("lockstep.monitor.step_callbacks.LateNumbers", None)
    for step in range(4):
        monitor.step(loss=torch.tensor(float(step)).as_subclass(OnDevice))
        stream.passed_ms = stream.now_ms
    before = calls()["MemcpyAsync"]
    monitor.step(loss=torch.tensor(0.0).as_subclass(OnDevice))
    assert calls()["MemcpyAsync"] == before
    monitor.close()
    periodic = read_page(root / "jobs/job-a/0/rank-00000.page").periodic
    assert [part for part, count in periodic["part_errors"].items() if count] == ["device_numbers"]


@pytest.mark.parametrize(
    "value", [torch.ones(2).as_subclass(OnDevice), torch.ones((), dtype=torch.int64), None, 1.5]
)
def test_what_is_no_number_on_the_device_is_not_copied(root: Path, value: object) -> None:
    stream, monitor = FakeStream(), attached(root, 0)
    on_fake_device(monitor, stream)
    before = calls()["MemcpyAsync"]
    monitor.step(gradient_norm=value)
    assert calls()["MemcpyAsync"] == before
    monitor.close()
