"""The monitor on loops without torch: phases, rows, totals, and what may go wrong in a loop."""

import logging
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lockstep
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.reader import read_page, read_rows

from ..rank_page import ENVIRONMENT, page_of


def test_phases_of_a_step_are_contiguous_and_add_up(root: Path, monitor: lockstep.Monitor) -> None:
    for _ in range(3):
        for name in ("data", "forward", "backward", "sync", "optimizer"):
            monitor.enter_phase(name)
            time.sleep(0.002)
        monitor.step(tokens=10)
    for row in read_rows(page_of(root)):
        parts = [row["phase_seconds"][phase] for phase in STEP_PHASES]
        assert row["seconds"] == pytest.approx(sum(parts), rel=1e-5)
        assert all(
            row["phase_seconds"][name] >= 0.002
            for name in ("data", "forward", "backward", "sync", "optimizer")
        )


def test_rows_follow_each_other_without_a_gap(root: Path, monitor: lockstep.Monitor) -> None:
    for _ in range(5):
        monitor.enter_phase("forward")
        time.sleep(0.001)
        monitor.step()
    rows = read_rows(page_of(root))
    for before, after in pairwise(rows):
        end_ns = before["start_ns"] + before["seconds"] * 1e9
        assert abs(after["start_ns"] - end_ns) < 2_000


def test_totals_are_the_sums_of_the_rows(root: Path, monitor: lockstep.Monitor) -> None:
    for number in range(7):
        monitor.enter_phase("forward")
        monitor.step(tokens=number, samples=2, loss=float(number))
    page, rows = page_of(root), read_rows(page_of(root))
    assert page.state["steps"] == len(rows) == 7
    assert page.state["tokens"] == sum(row["tokens"] for row in rows) == 21
    assert page.state["samples"] == 14
    assert sum(page.state["step_buckets"].values()) == 7
    assert page.state["loss"] == 6.0


def test_a_number_that_is_not_passed_is_unknown(root: Path, monitor: lockstep.Monitor) -> None:
    monitor.step()
    page, (row,) = page_of(root), read_rows(page_of(root))
    assert page.state["loss"] is None
    assert page.state["checkpoint_step"] is None
    assert row["loss"] is None
    assert row["last_arrival_ns"] is None


def test_a_non_finite_loss_is_kept_and_counted(root: Path, monitor: lockstep.Monitor) -> None:
    monitor.step(loss=1.0)
    monitor.step(loss=math.nan)
    monitor.step(loss=1.0, gradient_norm=math.inf)
    page = page_of(root)
    assert page.state["nonfinite_steps"] == 2
    assert math.isnan(read_rows(page)[1]["loss"])


def test_a_loss_too_large_for_a_row_is_infinite_there_and_exact_in_the_state(
    root: Path, monitor: lockstep.Monitor
) -> None:
    monitor.step(loss=-1e300)
    page = page_of(root)
    assert monitor.enabled
    assert read_rows(page)[0]["loss"] == -math.inf
    assert page.state["loss"] == -1e300


@pytest.mark.parametrize("by_next", [False, True])
def test_a_wait_for_a_batch_is_data(root: Path, monitor: lockstep.Monitor, by_next: bool) -> None:
    def slow_loader() -> Iterator[list[NDArray[np.float64]]]:
        for size in range(1, 4):
            time.sleep(0.01)
            yield [np.ones(size)]

    loader = slow_loader()
    taken = iter(lambda: next(monitor.prepare(loader), None), None)  # type: ignore[call-overload]  # an iterator too
    for _ in taken if by_next else monitor.prepare(loader):
        monitor.step()
    rows = [*read_rows(page_of(root))]
    assert [row["samples"] for row in rows] == [1, 2, 3]
    assert all(row["phase_seconds"]["data"] >= 0.01 for row in rows)


def test_a_prepared_loader_keeps_its_length_and_attributes(monitor: lockstep.Monitor) -> None:
    class Loader(list[int]):
        batch_size = 8

    prepared = monitor.prepare(Loader([1, 2, 3]))
    assert len(prepared) == 3  # type: ignore[arg-type]  # an Iterable that happens to have one
    assert prepared.batch_size == 8  # type: ignore[attr-defined]  # the loader's own


def test_a_loaders_exception_passes_through(root: Path, monitor: lockstep.Monitor) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("shard 7 is gone")

    with pytest.raises(OSError, match="shard 7"):
        list(monitor.prepare(broken()))
    monitor.step()
    assert page_of(root).state["steps"] == 1


def test_a_phase_entered_in_a_block_does_not_end_it(root: Path, monitor: lockstep.Monitor) -> None:
    with monitor.phase("eval"):
        monitor.enter_phase("forward")
        time.sleep(0.005)
    monitor.step()
    (row,) = read_rows(page_of(root))
    assert row["phase_seconds"]["eval"] >= 0.005
    assert row["phase_seconds"]["forward"] == 0


def test_an_unknown_phase_is_refused_with_the_known_ones(monitor: lockstep.Monitor) -> None:
    with pytest.raises(ValueError, match="'foward' is none of init, data, forward"):
        monitor.enter_phase("foward")


class BrokenHeartbeat:
    """Takes no word of the recorder."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __setitem__(self, index: int, word: int) -> None:
        raise self._error


@pytest.mark.parametrize("error", [ValueError("a"), OSError(28, "b"), RecursionError()], ids=repr)
def test_an_error_of_the_recorder_turns_the_monitor_off_and_is_logged_once(
    root: Path, monitor: lockstep.Monitor, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    monitor.step(tokens=1)
    recording: Any = monitor
    recording.recorder.heartbeat = BrokenHeartbeat(error)
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        monitor.step(tokens=1)
        monitor.step(tokens=1)
    assert not monitor.enabled
    assert len(caplog.records) == 1
    state = page_of(root).state
    assert state["internal_errors"] == 1
    assert state["steps"] == 1


@pytest.mark.parametrize("exit_error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_exit_of_a_program_passes(monitor: lockstep.Monitor, exit_error: BaseException) -> None:
    recorder: Any = monitor.recorder  # type: ignore[attr-defined]  # of a live one
    working, recorder.heartbeat = recorder.heartbeat, BrokenHeartbeat(exit_error)
    with pytest.raises(type(exit_error)):
        monitor.enter_phase("forward")
    recorder.heartbeat = working
    assert monitor.enabled


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank 4 is outside the world of 4"),
        ({"RANK": "two"}, "RANK='two' is not a whole number"),
        ({"LOCKSTEP_JOB_ID": "../etc"}, "job id '../etc' must be"),
    ],
)
def test_an_invalid_identity_turns_the_monitor_off_with_a_message(
    root: Path, environment: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        monitor = lockstep.attach(root=root, environment=environment)
    assert not monitor.enabled
    assert message in caplog.text
    assert not list(root.iterdir())


def test_the_folder_of_all_jobs_may_be_text(root: Path) -> None:
    lockstep.attach(root=str(root), environment=ENVIRONMENT).step()
    assert page_of(root).state["steps"] == 1


def test_a_folder_on_a_disk_turns_it_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        monitor = lockstep.attach(root=tmp_path / "pages", environment=ENVIRONMENT)
    assert not monitor.enabled
    assert "LOCKSTEP_DIR" in caplog.text
    assert not (tmp_path / "pages").exists()


def test_lockstep_off_records_and_logs_nothing(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not lockstep.attach(root=root, environment={"LOCKSTEP": "off"}).enabled
    assert not caplog.records


@pytest.mark.parametrize(("ending", "phase"), [("", "done"), ("raise OSError('disk')", "failed")])
def test_a_loop_that_forgets_to_close_is_done_or_failed_by_how_it_ended(
    root: Path, ending: str, phase: str
) -> None:
    program = (
        "import lockstep, pathlib, sys\n"
        "def loop():\n"
        "    monitor = lockstep.attach(root=pathlib.Path(sys.argv[1]), rows=8,\n"
        "                              environment={'LOCKSTEP_JOB_ID': 'job-a'})\n"
        f"    monitor.step()\n    {ending}\nloop()\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(root)], check=False, stderr=subprocess.DEVNULL
    )
    assert read_page(root / "jobs" / "job-a" / "0" / "rank-00000.page").phase == phase
