"""Training goes on while the archive's place is a pipe, whose opening blocks as a dead mount."""

import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lockstep
from lockstep_agent.delivery.archive import Archive
from lockstep_records.events.event import FILE_NAME, Event, append_event
from lockstep_records.files.jobs import job_folder
from lockstep_records.page.reader import read_page, read_rows

STEPS, PAIRS = 200, 3
TWICE = 2.0  # a step on that disk would take for ever; neighbours on this machine take some
SILENT_SECONDS = 0.3


class PipeNobodyReads:
    """The archive, whose place no copier gets on with while it is frozen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def pipe(self) -> Path:
        return self.folder / "jobs" / "job-a" / f".{FILE_NAME}.part"

    def freeze(self) -> None:
        self.pipe.unlink(missing_ok=True)
        os.mkfifo(self.pipe)

    def thaw(self) -> None:
        reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)
        # The copier may have got on and moved or removed it by now.
        self.pipe.unlink(missing_ok=True)
        os.close(reader)


@contextmanager
def archiving(root: Path, disk: PipeNobodyReads) -> Iterator[Archive]:
    """The archive of an agent with its child at work; the agent's end ends the child."""
    archive = Archive(root, f"file://{disk.folder}", silent_seconds=SILENT_SECONDS)
    list(archive.collect())
    began_seconds, child = archive._reported_seconds, archive._child
    assert child is not None
    assert child.stdin is not None
    with child:
        try:
            collect_until(archive, lambda: archive._reported_seconds > began_seconds)
            yield archive
        finally:
            child.stdin.close()
            child.wait(timeout=30)


def collect_until(archive: Archive, is_done: Callable[[], object]) -> None:
    """Lets the agent collect, as it does each tick, which never takes long."""
    deadline = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < deadline
        list(archive.collect())
        time.sleep(0.02)


def seconds_a_step(monitor: lockstep.Monitor) -> float:
    durations = []
    for _ in range(STEPS):
        began = time.perf_counter()
        monitor.enter_phase("forward")
        sum(range(20_000))
        monitor.step()
        durations.append(time.perf_counter() - began)
    return statistics.median(durations)


@pytest.mark.timing
@pytest.mark.timeout(180)
def test_training_goes_on_at_the_same_speed_while_the_disk_of_the_archive_is_frozen(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = PipeNobodyReads(tmp_path)
    caplog.set_level(logging.INFO, logger="lockstep_agent.delivery.archive")
    monitor = lockstep.attach(root=root, environment={"LOCKSTEP_JOB_ID": "job-a"})
    archived = disk.folder / "jobs" / "job-a" / FILE_NAME
    events = job_folder(root, "job-a") / FILE_NAME
    ratios = []
    for number in range(PAIRS):
        append_event(events.parent, Event(kind="attempt_started", job_id="job-a", attempt=number))
        with archiving(root, disk) as archive:
            collect_until(
                archive, lambda: archived.is_file() and archived.read_bytes() == events.read_bytes()
            )
        before = seconds_a_step(monitor)
        append_event(events.parent, Event(kind="attempt_started", job_id="job-a", attempt=number))
        disk.freeze()
        with archiving(root, disk) as archive:
            try:
                caplog.clear()
                collect_until(archive, lambda: "archive=silent" in caplog.text)
                ratios.append(seconds_a_step(monitor) / before)
                list(archive.collect())
                assert caplog.text.count("archive=silent") == 1
            finally:
                disk.thaw()
            collect_until(archive, lambda: "archive=answers" in caplog.text)
    monitor.close()
    assert statistics.median(ratios) < TWICE
    page = next((events.parent / "0").glob("*.page"))
    assert len(read_rows(read_page(page))) == 2 * PAIRS * STEPS
