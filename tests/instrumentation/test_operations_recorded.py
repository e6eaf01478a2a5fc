"""Sampled steps leave their operations: told one by one, or cut from the phases of the step."""

import time
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.recorder.phases import OTHER
from lockstep_records.operations import operation_values, read_operations
from lockstep_records.page.reader import read_page, read_rows

ENVIRONMENT = {"LOCKSTEP_JOB_ID": "job-a", "LOCKSTEP_SAMPLE_EVERY": "4"}


def attached(root: Path, **told: str) -> lockstep.LiveMonitor:
    monitor = lockstep.attach(root=root, environment=ENVIRONMENT | told, rows=64)
    assert isinstance(monitor, lockstep.LiveMonitor)
    return monitor


def rows_of(root: Path) -> list[dict[str, Any]]:
    return operation_values(read_operations(root / "jobs" / "job-a" / "0" / "rank-00000.ops"))


def recorder_of(monitor: lockstep.LiveMonitor) -> Any:
    return monitor.each_step.__self__.recorder  # type: ignore[attr-defined]  # bound to its watch


def one_step(monitor: lockstep.LiveMonitor, micro_batches: int = 2) -> None:
    for _ in range(micro_batches):
        monitor.enter_phase("forward")
        time.sleep(0.002)
        monitor.enter_phase("backward")
        time.sleep(0.001)
    monitor.wait_begins()
    monitor.wait_ended(OTHER, "all_reduce", 1, 100)
    monitor.enter_phase("optimizer")
    monitor.step()


def test_each_so_many_th_step_is_recorded_from_its_phases(root: Path) -> None:
    monitor = attached(root)
    for _ in range(10):
        one_step(monitor)
    rows = rows_of(root)
    assert sorted({row["step"] for row in rows}) == [4, 8]
    of_one = [row for row in rows if row["step"] == 4]
    assert [row["operation"] for row in of_one] == [
        "forward-compute",
        "backward-compute",
        "forward-compute",
        "backward-compute",
        "grads-sync",
        "optimizer",
    ]
    assert [row["micro_batch"] for row in of_one] == [0, 0, 1, 1, None, None]
    assert of_one[4]["kind"] == "all_reduce"
    step = next(
        r for r in read_rows(read_page(root / "jobs/job-a/0/rank-00000.page")) if r["step"] == 4
    )
    forward = sum(row["duration_ns"] for row in of_one if row["operation"] == "forward-compute")
    assert forward / 1e9 == pytest.approx(step["forward_seconds"], rel=1e-4)
    monitor.close()


def test_what_an_operation_tells_itself_is_not_cut_from_the_phases_again(root: Path) -> None:
    monitor = attached(root)
    for _ in range(4):
        one_step(monitor)
    recorder = recorder_of(monitor)
    assert recorder.sampling
    recorder.record("forward-compute", 100, 300, 5, 1, "")
    recorder.record("no-such-thing", 100, 300, 0, 0, "")
    one_step(monitor)
    rows = rows_of(root)
    forward = [row for row in rows if row["operation"] == "forward-compute"]
    assert [(row["micro_batch"], row["chunk"], row["flags"]) for row in forward] == [(5, 1, 0)]
    assert [row["flags"] for row in rows if row["operation"] == "backward-compute"] == [1, 1]
    assert recorder.refused == 1
    monitor.close()


def test_nothing_is_recorded_between_the_samples(root: Path) -> None:
    monitor = attached(root)
    one_step(monitor)
    recorder = recorder_of(monitor)
    recorder.record("forward-compute", 100, 300, 5, 1, "")
    one_step(monitor)
    assert rows_of(root) == []
    monitor.close()


def test_sampling_can_be_off_from_the_start(root: Path) -> None:
    monitor = attached(root, LOCKSTEP_SAMPLE_EVERY="0")
    for _ in range(9):
        one_step(monitor)
    assert rows_of(root) == []
    monitor.close()


@pytest.mark.parametrize("told", ["many", "-1", "1e9", "2.5"])
def test_a_sampling_that_cannot_be_leaves_the_monitor_off_and_no_page(
    root: Path, told: str
) -> None:
    environment = ENVIRONMENT | {"LOCKSTEP_SAMPLE_EVERY": told}
    assert not lockstep.attach(root=root, environment=environment).enabled
    assert not (root / "jobs").exists()
