"""Training goes on, same speed, while the disk of the archive does not answer.

The disk is truly frozen: an ext4 file system on a loop device, stopped by ``fsfreeze``, where the
machine allows it; and everywhere a pipe in the archive's place that nobody reads, whose opening
blocks as a dead mount does.
"""

import logging
import os
import shutil
import statistics
import subprocess
import time
from abc import ABC, abstractmethod
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


class Disk(ABC):
    """Where the archive lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def freeze(self) -> None: ...

    @abstractmethod
    def thaw(self) -> None: ...


class FrozenFileSystem(Disk):
    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "--freeze", self.folder], check=True)

    def thaw(self) -> None:
        subprocess.run(["fsfreeze", "--unfreeze", self.folder], check=True)


class PipeNobodyReads(Disk):
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


@pytest.fixture
def file_system(tmp_path: Path) -> Iterator[Disk]:
    image, folder = tmp_path / "disk", tmp_path / "mounted"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    folder.mkdir()
    commands = (
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(folder)],
    )
    for command in commands:
        if shutil.which(command[0]) is None or shutil.which("fsfreeze") is None:
            pytest.skip("freezing a disk needs mkfs.ext4, mount and fsfreeze")
        if subprocess.run(command, check=False, capture_output=True).returncode != 0:
            pytest.skip("mounting a disk needs root and a loop device")
    yield FrozenFileSystem(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param is FrozenFileSystem:
        mounted: Disk = request.getfixturevalue("file_system")
        return mounted
    folder = tmp_path / "archive"
    folder.mkdir()
    return PipeNobodyReads(folder)


def is_copied(source: Path, copy: Path) -> bool:
    return copy.is_file() and copy.read_bytes() == source.read_bytes()


@contextmanager
def archiving(root: Path, disk: Disk) -> Iterator[Archive]:
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
@pytest.mark.parametrize(
    "disk",
    [pytest.param(FrozenFileSystem, marks=pytest.mark.release), PipeNobodyReads],
    indirect=True,
)
def test_training_goes_on_at_the_same_speed_while_the_disk_of_the_archive_is_frozen(
    disk: Disk, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
