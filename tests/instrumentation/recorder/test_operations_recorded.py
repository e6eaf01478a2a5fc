"""Sampled steps leave their operations: reported one by one, or derived from phases."""

import time
from pathlib import Path
from typing import Any

import pytest
from trainer_validation.operation_values import operation_values

import lockstep
from lockstep.monitor.step_watch import StepWatch
from lockstep.recorder.phases import OTHER
from lockstep_records.page.reader import read_page, read_rows

ENVIRONMENT = {"LOCKSTEP_JOB_ID": "job-a", "LOCKSTEP_SAMPLE_EVERY": "4"}


def attached(root: Path, **environment: str) -> lockstep.LiveMonitor:
    monitor = lockstep.attach(root=root, environment=ENVIRONMENT | environment, rows=64)
    assert isinstance(monitor, lockstep.LiveMonitor)
    return monitor


def rows_of(root: Path) -> list[dict[str, Any]]:
    return operation_values(root / "jobs" / "job-a" / "0" / "rank-00000.ops")


def recorder_of(monitor: lockstep.LiveMonitor) -> Any:
    assert isinstance(monitor.observer, StepWatch)
    return monitor.observer.operations


def run_step(monitor: lockstep.LiveMonitor, micro_batches: int = 2) -> None:
    for _ in range(micro_batches):
        monitor.enter_phase("forward")
        time.sleep(0.002)
        monitor.enter_phase("backward")
        time.sleep(0.001)
    monitor.wait_begins()
    monitor.wait_ended(OTHER, "all_reduce", 1, 100)
    monitor.enter_phase("optimizer")
    monitor.step()


def test_every_fourth_step_is_recorded_from_its_phases(root: Path) -> None:
    monitor = attached(root)
    for _ in range(10):
        run_step(monitor)
    rows = rows_of(root)
    assert sorted({row["step"] for row in rows}) == [4, 8]
    step_rows = [row for row in rows if row["step"] == 4]
    assert [row["operation"] for row in step_rows] == [
        "forward-compute",
        "backward-compute",
        "forward-compute",
        "backward-compute",
        "grads-sync",
        "optimizer",
    ]
    assert [row["micro_batch"] for row in step_rows] == [0, 0, 1, 1, None, None]
    assert step_rows[4]["kind"] == "all_reduce"
    step = next(
        r for r in read_rows(read_page(root / "jobs/job-a/0/rank-00000.page")) if r["step"] == 4
    )
    forward = sum(row["duration_ns"] for row in step_rows if row["operation"] == "forward-compute")
    assert forward / 1e9 == pytest.approx(step["phase_seconds"]["forward"], rel=1e-4)
    monitor.close()


def test_an_operation_that_was_reported_is_not_derived_from_the_phases_again(root: Path) -> None:
    monitor = attached(root)
    for _ in range(4):
        run_step(monitor)
    recorder = recorder_of(monitor)
    assert recorder.sampling
    recorder.record("forward-compute", 100, 300, 5, 1, "")
    recorder.record("no-such-thing", 100, 300, 0, 0, "")
    run_step(monitor)
    rows = rows_of(root)
    forward = [row for row in rows if row["operation"] == "forward-compute"]
    assert [(row["micro_batch"], row["chunk"], row["flags"]) for row in forward] == [(5, 1, 0)]
    assert [row["flags"] for row in rows if row["operation"] == "backward-compute"] == [1, 1]
    assert recorder.refused == 1
    monitor.close()


def test_nothing_is_recorded_between_the_samples(root: Path) -> None:
    monitor = attached(root)
    run_step(monitor)
    recorder = recorder_of(monitor)
    recorder.record("forward-compute", 100, 300, 5, 1, "")
    run_step(monitor)
    assert rows_of(root) == []
    monitor.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("LOCKSTEP_SAMPLE_EVERY", text) for text in ("many", "-1", "1e9", "1000000001", "2.5")),
        *(("LOCKSTEP_HANG_TIMEOUT", text) for text in ("120", "-1s", "soon", "400d")),
    ],
)
def test_an_invalid_setting_leaves_no_monitor_and_no_page(root: Path, name: str, text: str) -> None:
    environment = ENVIRONMENT | {name: text}
    assert not lockstep.attach(root=root, environment=environment).enabled
    assert not (root / "jobs").exists()
