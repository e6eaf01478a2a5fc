"""Trouble in a loop or around it: training goes on, and it is logged once and counted."""

import contextlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep
from lockstep_records.page.reader import Page, read_page
from lockstep_records.page.writer import PageWriter, RankIdentity

SECOND_NS = 1_000_000_000


@pytest.fixture
def monitor(root: Path) -> lockstep.LiveMonitor:
    page = PageWriter(
        root / "0" / "rank-00000.page", RankIdentity(job_id="a", rank=0, world_size=1)
    )
    return lockstep.LiveMonitor(page, no_step_timeout_seconds=100)


@pytest.fixture
def tiny(root: Path) -> Iterator[Path]:
    """A tmpfs of one MiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield root
    subprocess.run(["umount", root], check=True)


def troubles(root: Path) -> dict[str, int]:
    page = read_page(root / "0" / "rank-00000.page")
    return {name: count for name, count in page.periodic["troubles"].items() if count}


def num_logged(caplog: pytest.LogCaptureFixture, phrase: str) -> int:
    return sum(phrase in record.getMessage() for record in caplog.records)


def test_a_users_exception_in_a_block_passes_and_is_logged_once(
    root: Path, monitor: lockstep.LiveMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with pytest.raises(KeyError), monitor.phase("eval"):
            raise KeyError("no such batch")
        monitor.step()
    monitor.close()
    assert troubles(root) == {"span_exception": 3}
    assert num_logged(caplog, "KeyError left a block of phase eval; training goes on") == 1


class FakeClock:
    """Lets seconds pass for a monitor, with or without steps."""

    def __init__(self, monitor: lockstep.LiveMonitor) -> None:
        self._monitor, self._now_ns = monitor, time.monotonic_ns()

    def advance(self, seconds: int, *, with_steps: bool = False) -> None:
        for _ in range(seconds):
            self._now_ns += SECOND_NS
            if with_steps:
                self._monitor.step()
            self._monitor._periodic.tick(self._now_ns)  # as a change of phase does


def test_a_loop_that_forgets_to_end_its_steps_is_reported_and_another_is_not(
    root: Path, monitor: lockstep.LiveMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(monitor)
    clock.advance(500, with_steps=True)
    assert troubles(root) == {}
    clock.advance(500)
    monitor.close()
    assert troubles(root)["no_step"] >= 3
    assert num_logged(caplog, "call monitor.step() at the end of each step") == 1


def test_a_first_step_that_takes_long_in_one_phase_is_no_forgotten_step(
    root: Path, monitor: lockstep.LiveMonitor
) -> None:
    monitor._callbacks.tick(SECOND_NS)  # the first phase
    monitor._callbacks.tick(900 * SECOND_NS)  # the next one, after a compilation
    monitor.close()
    assert troubles(root) == {}


def test_a_page_that_is_deleted_under_the_run_is_logged_once_and_the_run_goes_on(
    root: Path, monitor: lockstep.LiveMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    page = root / "0" / "rank-00000.page"
    second_name = root / "linked.page"
    os.link(page, second_name)
    clock = FakeClock(monitor)
    clock.advance(15, with_steps=True)
    shutil.rmtree(page.parent)
    clock.advance(60, with_steps=True)
    monitor.close()
    linked: Page = read_page(second_name)
    assert linked.periodic["troubles"]["page_deleted"] == 1
    assert linked.state["steps"] == 15 + 60
    assert num_logged(caplog, "was deleted under the run") == 1


def test_a_fork_is_logged_once_and_counted_and_the_child_writes_nothing(
    root: Path, monitor: lockstep.LiveMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="lockstep"):
        for _ in range(2):
            child = os.fork()
            if child == 0:
                monitor.step(tokens=100)
                os._exit(3 if monitor.enabled else 0)
            assert os.waitpid(child, 0)[1] == 0
    monitor.step(tokens=1)
    monitor.close()
    assert read_page(root / "0" / "rank-00000.page").state["tokens"] == 1
    assert troubles(root) == {"fork": 2}
    assert num_logged(caplog, "the process forked") == 1


def test_a_full_tmpfs_leaves_a_loop_that_runs_without_a_page(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.suppress(OSError):
        tiny.joinpath("of-others").write_bytes(bytes(64 << 20))
    monitor = lockstep.attach(root=tiny, environment={"LOCKSTEP_JOB_ID": "a"})
    monitor.step(loss=1.0)
    assert not monitor.enabled
    assert num_logged(caplog, "its file system has no room") == 1


def test_a_phase_is_periodic_work_once_a_second_at_most(
    monitor: lockstep.LiveMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[int] = []
    monitor.enter_phase("data")
    monkeypatch.setattr(monitor._periodic, "tick", ticks.append)  # to count them
    begin = time.monotonic()
    for _ in range(2000):
        monitor.enter_phase("forward")
    assert len(ticks) <= time.monotonic() - begin + 1
    monitor.close()
