"""Whether a rank runs is the kernel's answer: in other PID namespaces and after kill -9."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from sample_pages import write_step
from servers import wait_until

from lockstep_records.page.liveness import RankProcess, find_process
from lockstep_records.page.lock import PageLock, holder_of
from lockstep_records.page.reader import Page, PageError, read_page, read_rows
from lockstep_records.page.writer import PageWriter, RankIdentity

from ..killed_writers import killed_files

_UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")
_RANK = """
import os, sys, time
from pathlib import Path
from lockstep_records.page.writer import PageWriter, RankIdentity
path = Path(sys.argv[1])
writer = PageWriter(path, RankIdentity(job_id="job-a", rank=0, world_size=1), rows=4)
if "worker" in sys.argv:
    if os.fork() == 0:
        path.with_suffix(".worker").write_text(str(os.getpid()))
        time.sleep(600)
path.with_suffix(".ready").write_text(str(os.getpid()))
time.sleep(600)
"""


def may_unshare() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([*_UNSHARE, "true"], check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not may_unshare(), reason="PID namespaces take privileges")


@contextlib.contextmanager
def rank_process(
    path: Path, *arguments: str, wrapper: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a page, in a session of its own, until the block ends."""
    command = [*wrapper, sys.executable, "-c", _RANK, str(path), *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        wait_until(path.with_suffix(".ready").exists)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def page_of(folder: Path) -> Path:
    return folder / "rank-00000.page"


def create_page(path: Path) -> PageWriter:
    return PageWriter(path, RankIdentity(job_id="job-a", rank=0, world_size=1), rows=4)


def running_pid(path: Path) -> int | None:
    process = find_process(read_page(path))
    assert process is not None
    return process.pid


def test_a_rank_is_found_until_kill_9_and_its_zombie_is_none(memory: Path) -> None:
    path = page_of(memory)
    with rank_process(path) as process:
        assert find_process(read_page(path)) == RankProcess(process.pid)
        process.kill()
        # Before anybody has reaped it: a zombie has closed its files.
        wait_until(lambda: find_process(read_page(path)) is None)


def test_a_worker_that_outlives_its_rank_holds_nothing(memory: Path) -> None:
    path = page_of(memory)
    with rank_process(path, "worker") as process:
        wait_until(lambda: path.with_suffix(".worker").exists())
        assert running_pid(path) == process.pid
        process.kill()
        process.wait()
        wait_until(lambda: find_process(read_page(path)) is None)
        os.kill(int(path.with_suffix(".worker").read_text()), 0)  # it still runs


@needs_namespaces
def test_a_rank_of_another_namespace_runs_though_its_pid_is_1_there(memory: Path) -> None:
    path = page_of(memory)
    with rank_process(path, wrapper=(*_UNSHARE, "--mount-proc")) as process:
        page = read_page(path)
        # Here pid 1 is another process, that lives on when the rank is killed.
        assert page.identity["pid"] == 1
        pid = running_pid(path)
        assert pid is not None
        assert pid > 1
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert [str(pid)] == children
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: find_process(page) is None)


@needs_namespaces
@pytest.mark.parametrize("mounts_proc", [True, False])
def test_a_reader_that_sees_no_rank_finds_it_alive(memory: Path, *, mounts_proc: bool) -> None:
    path = page_of(memory)
    reader = (
        "from pathlib import Path; import sys\n"
        "from lockstep_records.page.liveness import find_process\n"
        "from lockstep_records.page.reader import read_page\n"
        "print(find_process(read_page(Path(sys.argv[1]))))"
    )
    unshare = (*_UNSHARE, "--mount-proc") if mounts_proc else _UNSHARE
    with rank_process(path) as process:
        command = [*unshare, sys.executable, "-c", reader, str(path)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    # With the host's /proc mounted, the kernel's table of locks has the pid there.
    assert answer == f"RankProcess(pid={None if mounts_proc else process.pid})"


def test_a_pid_that_another_process_took_over_says_nothing(memory: Path) -> None:
    path = page_of(memory)
    with rank_process(path) as process:
        page = read_page(path)
        process.kill()
        process.wait()
        # As after reuse of the number: that process runs, and is younger or older.
        reused = replace(page, identity=page.identity | {"pid": os.getpid()})
        wait_until(lambda: find_process(reused) is None)


def test_a_process_finds_its_own_page_and_reading_it_keeps_the_lock(memory: Path) -> None:
    writer = create_page(page_of(memory))
    write_step(writer)
    page = read_page(writer.path)
    assert len(read_rows(page)) == 1
    assert find_process(page) == RankProcess(os.getpid())
    assert held_for_others(writer.path)
    writer.close()
    assert find_process(page) is None


def test_a_lock_that_the_user_dropped_by_reading_the_file_is_renewed(memory: Path) -> None:
    writer = create_page(page_of(memory))
    writer.path.read_bytes()
    assert not held_for_others(writer.path)
    writer.lock.renew()
    assert held_for_others(writer.path)
    writer.close()


def held_for_others(path: Path) -> bool:
    """Whether another process finds the page held."""
    code = (
        "import sys; from pathlib import Path; from lockstep_records.page.lock import holder_of\n"
        "sys.exit(holder_of(Path(sys.argv[1])) is None)"
    )
    return subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0


def test_a_writer_that_is_forgotten_holds_no_page(memory: Path) -> None:
    path = create_page(page_of(memory)).path
    assert holder_of(path) is None


def test_without_locks_the_pages_pid_counts(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    writer = create_page(page_of(memory))
    assert not writer.lock.is_held
    page = read_page(writer.path)
    assert page.identity["locked"] == 0
    assert find_process(page) == RankProcess(os.getpid())
    dead = replace(page, identity=page.identity | {"pid": 1 << 22})
    assert find_process(dead) is None
    writer.close()


def test_a_page_deleted_under_the_run_goes_by_its_pid(memory: Path) -> None:
    writer = create_page(page_of(memory))
    page = read_page(writer.path)
    writer.path.unlink()
    assert find_process(page) == RankProcess(os.getpid())
    writer.close()


def test_a_lock_that_is_released_twice_closes_nothing_of_others(memory: Path) -> None:
    path = memory / "file"
    lock = PageLock(os.open(path, os.O_RDWR | os.O_CREAT))
    lock.release()
    descriptor = os.open(path, os.O_RDONLY)
    lock.release()
    lock.renew()
    os.fstat(descriptor)
    os.close(descriptor)


READING_SECONDS = 1.0
CYCLE = (1, 10, 100)


@contextmanager
def hammering(path: Path) -> Iterator[None]:
    """A process that writes the page in a hot loop; ready when the page can be read."""
    program = f"from sample_pages import hammer; hammer({str(path)!r})"
    with subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2]) as writer:
        try:
            wait_until(lambda: readable(path), 40, pause=0.001)
            yield
        finally:
            writer.kill()


def readable(path: Path) -> bool:
    try:
        return bool(read_page(path).state["steps"])
    except PageError:
        return False


def tokens_until(steps: int) -> int:
    return steps // len(CYCLE) * sum(CYCLE) + sum(CYCLE[: steps % len(CYCLE)])


def assert_totals_fit(page: Page) -> None:
    state = page.state
    steps = state["steps"]
    assert state["tokens"] == tokens_until(steps)
    assert state["samples"] == 4 * steps
    assert state["phase_seconds"]["backward"] == 0.5 * steps
    assert sum(state["step_buckets"].values()) == steps
    assert state["step_seconds_sum"] == 0.875 * steps


def test_a_page_is_intact_up_to_its_last_step_whenever_its_rank_is_killed(memory: Path) -> None:
    for path in killed_files(memory, "hammer", ".page", readable):
        page = read_page(path)
        assert_totals_fit(page)
        rows, steps = read_rows(page), page.state["steps"]
        newest = rows[-1]["number"] + 1
        assert newest - steps in {0, 1}
        assert [row["number"] for row in rows] == list(range(newest - len(rows), newest))
        assert len(rows) >= min(63, steps), "only the row being written may be missing"
        assert [row["tokens"] for row in rows] == [CYCLE[row["number"] % 3] for row in rows]


def test_a_reader_beside_the_writer_reads_intact_states_that_never_go_back(memory: Path) -> None:
    path = memory / "rank-00000.page"
    with hammering(path):
        sequences = list(islice(states(path, time.monotonic() + READING_SECONDS), 1_000_000))
    assert len(sequences) > 100
    assert sequences == sorted(sequences)
    assert sequences[-1] > sequences[0]


def states(path: Path, until: float) -> Iterator[int]:
    """The sequence of every state read until a moment, each checked."""
    while time.monotonic() < until:
        page = read_page(path)
        assert_totals_fit(page)
        yield page.state["sequence"]


def test_rows_read_beside_the_writer_are_intact_and_in_order(memory: Path) -> None:
    path = memory / "rank-00000.page"
    with hammering(path):
        for _ in range(300):
            rows = read_rows(read_page(path))
            numbers = [row["number"] for row in rows]
            assert numbers == sorted(numbers)
            assert all(row["tokens"] == CYCLE[row["number"] % 3] for row in rows)
