"""A rank that hangs leaves its stacks, and its phase is seen from outside."""

import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import wait_until

from lockstep.hangs.node_watch import _NodeWatch, watch_for_hangs
from lockstep.hangs.rank_watch import _free_signal
from lockstep.recorder.native import compiled
from lockstep_outcomes.progress.hangs import HangTimeouts, find_hang
from lockstep_records.events.event import FILE_NAME as EVENTS_FILE
from lockstep_records.events.event import Event, read_events
from lockstep_records.files.jobs import newest_pages
from lockstep_records.page.reader import read_page
from lockstep_records.text.durations import format_duration

from ..torch_versions import without_flight_recorder

TIMEOUT_SECONDS = 0.4
TIMEOUTS = HangTimeouts(step_seconds=TIMEOUT_SECONDS)

LOOP = """
import ctypes, os, sys, time
import lockstep
monitor = lockstep.attach()
for step in range(20):
    monitor.enter_phase("forward")
    time.sleep(0.002)
    monitor.step()
monitor.enter_phase("backward")
def stuck():
    {stuck}
stuck()
"""
STUCK = {
    "asleep": "time.sleep(100)",
    "holding the lock": "ctypes.PyDLL(None).sleep(100)",
    "stopped": "os.kill(os.getpid(), 19)",
}

STOPPED_PEER = """
import os, signal, sys
import torch
import torch.distributed as dist
import lockstep
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = lockstep.attach(model, optimizer)
for step in range(12):
    model(torch.ones(4, 8)).sum().backward()
    if step == 8 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    optimizer.step()
    monitor.step()
monitor.close()
dist.destroy_process_group()
"""

FORKED = """
import gc, os, sys
from pathlib import Path
import torch.distributed as dist
import lockstep
from lockstep.hangs.rank_watch import HangWatch
from lockstep_records.files.jobs import page_path
from lockstep_records.files.worker_socket import query, socket_path
root, store = map(Path, sys.argv[1:])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
monitor = lockstep.attach(root=root, environment={"LOCKSTEP_JOB_ID": "job-a"})
socket = socket_path(page_path(root, "job-a", 0, 0))
assert query(socket, "fr_trace_json")
child = os.fork()
if child == 0:
    monitor.close()
    for watch in [found for found in gc.get_objects() if type(found) is HangWatch]:
        watch._server = None  # as at the end of an interpreter
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for _ in range(3):
    monitor.step()
assert query(socket, "fr_trace_json"), "the child took the parent's socket with it"
monitor.close()
dist.destroy_process_group()
"""


@pytest.fixture(name="job", scope="module")
def _job(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Folder of a job whose one rank hangs after 20 steps, in the way that the parameter names."""
    root = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    settings = {
        "LOCKSTEP_DIR": str(root),
        "LOCKSTEP_JOB_ID": "job-a",
        "LOCKSTEP_HANG_TIMEOUT": format_duration(TIMEOUT_SECONDS),
    }
    program = LOOP.format(stuck=STUCK[request.param])
    job = root / "jobs" / "job-a"
    with subprocess.Popen([sys.executable, "-c", program], env=os.environ | settings) as rank:
        try:
            wait_until(
                lambda: job.is_dir() and [p.phase for p in newest_pages(job)] == ["backward"]
            )
            yield job
        finally:
            rank.kill()
            shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(name="events")
def _events(job: Path) -> Path:
    """File of the job's events, empty: the tests of a job share its rank."""
    path = job / EVENTS_FILE
    path.unlink(missing_ok=True)
    return path


@pytest.mark.distributed
@pytest.mark.parametrize("job", ["asleep", "holding the lock"], indirect=True)
def test_a_rank_that_hangs_leaves_its_stacks_even_without_the_interpreters_lock(job: Path) -> None:
    stacks = job / "0" / "rank-00000.stacks"
    wait_until(lambda: "in stuck" in stacks.read_text())


@pytest.mark.distributed
@pytest.mark.usefixtures("events")
@pytest.mark.parametrize(
    ("job", "process"),
    [("asleep", "S"), ("holding the lock", "S"), ("stopped", "T")],
    indirect=["job"],
)
def test_a_rank_that_hangs_is_seen_from_outside(job: Path, process: str) -> None:
    assert (
        find_hang(newest_pages(job), time.monotonic_ns(), HangTimeouts(step_seconds=600.0)) is None
    )
    with watch_for_hangs(job, "job-a", TIMEOUTS):
        wait_until(lambda: read_events(job))
    (event,) = read_events(job)
    (rank,) = event.fields["ranks"]
    assert event.kind == "hang"
    assert (rank["rank"], rank["phase"], rank["step"]) == (0, "backward", 19)
    assert rank["idle_seconds"] > TIMEOUT_SECONDS
    assert rank["process"] == process
    assert event.fields["missing"] == [0]


@pytest.mark.distributed
@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("job", ["asleep"], indirect=True)
def test_a_hang_is_reported_once_and_the_next_one_again(job: Path) -> None:
    watch = _NodeWatch(job, "job-a", TIMEOUTS)
    (page,) = newest_pages(job)
    for idle_seconds in (1000, 1001, 0, 1002):
        watch.poll(page.progress_ns + idle_seconds * 10**9)
    kinds = [event.kind for event in read_events(job)]
    assert kinds == ["hang", "hang_ended", "hang"]


@pytest.mark.distributed
@without_flight_recorder
@pytest.mark.timeout(120)
def test_a_forked_child_leaves_the_worker_server_of_its_parent(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(root), str(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr


@without_flight_recorder
@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_a_peer_that_is_stopped_is_missing_and_the_others_wait_in_their_collective(
    root: Path, tmp_path: Path
) -> None:
    script = tmp_path / "loop.py"
    script.write_text(STOPPED_PEER)
    job = root / "jobs" / "job-a"
    command = [sys.executable, "-m", "lockstep_cli.main", "run", "--nproc-per-node", "2"]
    command += ["--job-id", "job-a", "--dir", str(root), "--hang-timeout", "2s", str(script)]
    with subprocess.Popen(command) as launcher:
        try:
            # A rank that gets no processor for two seconds may hang before.
            (event,) = wait_until(
                lambda: [each for each in hangs_of(job) if each.fields["missing"] == [1]], 50
            )
            pid = read_page(job / "0" / "rank-00001.page").identity["pid"]
            os.kill(pid, signal.SIGCONT)
            assert launcher.wait(timeout=30) == 0
        finally:
            launcher.terminate()
    phases = {rank["rank"]: rank["phase"] for rank in event.fields["ranks"]}
    assert phases[0] == "sync"
    assert 0 in event.fields["flight_recorders"]
    recorded = json.loads((job / "0" / "rank-00000.flight.json").read_text())
    assert recorded["pg_status"]


def hangs_of(job: Path) -> list[Event]:
    return [event for event in read_events(job) if event.kind == "hang"]


@pytest.mark.skipif(compiled is None, reason="faulthandler's own thread writes stacks then")
def test_what_ends_the_writer_of_stacks_ends_no_rank(tmp_path: Path) -> None:
    assert compiled is not None
    # It walks frames of threads that may run: a rank that was stopped and went on has crashed.
    for number in (signal.SIGSEGV, signal.SIGKILL):
        assert compiled.write_stacks_at(time.monotonic_ns(), number)
        time.sleep(0.5)
    with (tmp_path / "stacks").open("w+") as file:
        faulthandler.register(signal.SIGRTMAX, file=file)
        compiled.write_stacks_at(time.monotonic_ns(), signal.SIGRTMAX)
        wait_until(lambda: "test_what_ends_the_writer" in (tmp_path / "stacks").read_text())
        faulthandler.unregister(signal.SIGRTMAX)


SHUT_AT_ONCE = """
import sys
from pathlib import Path
import torch.distributed as dist
from lockstep.hangs.worker_server import shut_down, start_worker_server
root = Path(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{root}/store", rank=0, world_size=1)
for number in range(4):
    socket = root / f"{number}.sock"
    server = start_worker_server(socket)
    assert server is not None
    shut_down(server, socket)
dist.destroy_process_group()
"""


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_a_rank_that_ends_at_once_waits_for_no_server_that_is_not_up_and_logs_none(
    root: Path,
) -> None:
    command = [sys.executable, "-c", SHUT_AT_ONCE, str(root)]
    done = subprocess.run(command, timeout=60, check=True, capture_output=True, text=True)
    assert "Server" not in done.stderr


def test_the_signal_of_the_stacks_is_none_that_a_handler_in_c_has() -> None:
    number = _free_signal()
    assert number is not None
    faulthandler.register(number)  # of which Python's own table knows nothing
    try:
        assert _free_signal() == number - 1
    finally:
        faulthandler.unregister(number)
    assert _free_signal() == number
