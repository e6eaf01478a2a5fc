"""A page holds how long the loop had a core and waited for one: in rows, and as a total."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lockstep
from lockstep.monitor.step_callbacks import LoopThreads
from lockstep.recorder.interface import RUN_QUEUE_EVERY_NS
from lockstep_records.page.reader import read_page, read_rows

from ..rank_page import page_of
from .recorder_fixture import RecorderFixture
from .test_native import needs_c

_NS = 1e-9
_PAUSE_SECONDS = 1.5 * RUN_QUEUE_EVERY_NS * _NS


def write_wait(file: Path, waited_ns: int) -> None:
    # In place, as the kernel's: the recorder holds it open.
    with file.open("r+" if file.exists() else "w", encoding="ascii") as stream:
        stream.write(f"{500_000_000 + waited_ns // 5} {waited_ns:012d} 7\n")


def take_steps(fixture: RecorderFixture, file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        fixture.recorder.watch_run_queue((descriptor,))
        for waited_ns in (5_000_000, 25_000_000, 25_000_000):
            write_wait(file, waited_ns)
            time.sleep(_PAUSE_SECONDS)
            fixture.recorder.step()
        fixture.recorder.step()  # shares the next read, as a step that soon after the one before
        file.write_text("no numbers", encoding="ascii")
        time.sleep(_PAUSE_SECONDS)
        fixture.recorder.step()
        write_wait(file, 90_000_000)
        time.sleep(_PAUSE_SECONDS)
        fixture.recorder.step()
        fixture.page.periodic.commit(time.monotonic_ns())
    finally:
        os.close(descriptor)


@needs_c
def test_a_row_has_the_wait_since_the_row_before_and_none_where_it_is_unknown(
    root: Path, tmp_path: Path
) -> None:
    fixture, file = RecorderFixture(root), tmp_path / "schedstat"
    write_wait(file, 0)
    take_steps(fixture, file)
    page = read_page(fixture.path)
    waits = [row["extras"]["run_queue_seconds"] for row in read_rows(page)]
    assert waits == [None, pytest.approx(0.020), 0.0, None, None, None]
    cores = [row["extras"]["core_seconds"] for row in read_rows(page)]
    assert cores == [None, pytest.approx(0.004), 0.0, None, None, None]
    assert page.periodic["run_queue_seconds"] == pytest.approx(0.020)


def make_thread(tasks: Path, number: int, name: str, core_ns: int) -> None:
    folder = tasks / str(number)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(name + "\n", encoding="ascii")
    (folder / "schedstat").write_text(f"{core_ns} 0 1\n", encoding="ascii")


def names_of(descriptors: tuple[int, ...] | None) -> list[str]:
    return [Path(f"/proc/self/fd/{n}").readlink().parent.name for n in descriptors or ()]


def test_the_loops_threads_are_its_own_and_those_that_run_its_backward(tmp_path: Path) -> None:
    own = threading.get_native_id()
    make_thread(tmp_path, own, "python", 1_000_000_000)
    make_thread(tmp_path, own + 1, "gloo_tcp_loop", 1_000_000_000)
    make_thread(tmp_path, own + 2, "pt_autograd_0", 900_000_000)
    make_thread(tmp_path, own + 3, "pt_autograd_1", 40_000)
    threads = LoopThreads(tmp_path)
    assert names_of(threads.poll(0)) == [str(own), str(own + 2)]
    assert threads.poll(1) is None
    make_thread(tmp_path, own + 4, "pt_autograd_2", 900_000_000)
    assert names_of(threads.poll(10**10)) == [str(own), str(own + 2), str(own + 4)]
    assert threads.poll(10**11) is None
    threads.close()


def test_a_kernel_without_the_statistics_has_no_threads_to_read(tmp_path: Path) -> None:
    make_thread(tmp_path, threading.get_native_id(), "python", 0)
    assert LoopThreads(tmp_path).poll(0) == ()
    assert LoopThreads(tmp_path / "missing").poll(0) == ()


def _compute() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def crowded_core() -> Iterator[None]:
    """This thread shares one core with a process that computes all the time."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    other = multiprocessing.get_context("fork").Process(target=_compute, daemon=True)
    other.start()
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        other.kill()
        other.join()


def test_a_loop_that_shares_its_core_waits_about_as_long_as_it_computes(
    root: Path, monitor: lockstep.Monitor
) -> None:
    with crowded_core():
        for _ in range(12):
            begin = time.thread_time()
            while time.thread_time() - begin < 0.03:
                sum(range(1000))
            monitor.step()
    rows = read_rows(page_of(root))
    monitor.close()
    waits = [row["extras"]["run_queue_seconds"] for row in rows]
    assert waits[0] is None
    waited = sum(wait for wait in waits[1:] if wait is not None)
    beyond_its_work = sum(row["seconds"] for row in rows[1:]) - 11 * 0.03
    assert waited > 0.05
    assert 0.5 * beyond_its_work < waited < 1.1 * beyond_its_work
    assert page_of(root).periodic["run_queue_seconds"] == pytest.approx(waited, rel=1e-5)
