"""The files of a tenant in a job's folder neither blocks nor misleads its readers."""

import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_pages import written_page

from lockstep_records.events.event import MAX_EVENTS_BYTES, Event, append_event, read_events
from lockstep_records.file_access.foreign_files import (
    ForeignFileError,
    open_foreign,
    owner_of,
    read_foreign,
    scan_foreign,
)
from lockstep_records.files import jobs
from lockstep_records.files.jobs import find_job, list_attempts, list_jobs, list_pages
from lockstep_records.files.last_output import read_error, read_output, read_torchrun_error
from lockstep_records.files.operations import read_operations
from lockstep_records.files.rank_files import answer_path, fetch, read_answer, trace_path
from lockstep_records.files.spans import read_spans
from lockstep_records.files.switches import read_switches
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import PageError, PageReader, read_page

from ..two_users import NEIGHBOUR, TENANT, as_root, run_as, shared_root

_ONE_TERABYTE = 1 << 40


def _place_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _place_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _place_device(path: Path) -> None:
    os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero has no end


def _place_second_name(path: Path) -> None:
    other = path.with_name(f"{path.name}.other")
    other.write_bytes(b"{}")
    path.hardlink_to(other)


def _place_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_ONE_TERABYTE)


hostile_files = pytest.mark.parametrize(
    ("plant", "reason"),
    [
        pytest.param(_place_link, "it is a link", id="link"),
        pytest.param(lambda path: path.symlink_to("nowhere"), "it is a link", id="dangling"),
        pytest.param(os.mkfifo, "no regular file", id="fifo"),
        pytest.param(_place_socket, "no regular file", id="socket"),
        pytest.param(Path.mkdir, "no regular file", id="folder"),
        pytest.param(
            _place_device, "no regular file|Permission denied", id="device", marks=as_root
        ),
        pytest.param(_place_second_name, "it has 2 names", id="second name"),
        pytest.param(_place_sparse, "longer than 1024 bytes", id="terabyte"),
    ],
)


@hostile_files
def test_what_is_no_plain_file_of_one_name_is_refused_at_once(
    memory: Path, plant: Callable[[Path], None], reason: str
) -> None:
    path = memory / "0" / "rank-00000.error.json"
    path.parent.mkdir()
    plant(path)
    with pytest.raises(OSError, match=reason):
        read_foreign(path, 1024)


@hostile_files
def test_each_reader_of_a_job_goes_on_without_such_a_file(
    memory: Path, plant: Callable[[Path], None], reason: str
) -> None:
    assert reason
    attempt = memory / "0"
    attempt.mkdir()
    page = attempt / "rank-00000.page"
    suffixes = (".stderr", ".error.json", ".spans.jsonl", ".spans.old.jsonl", ".ops", ".page")
    for path in (
        *(page.with_suffix(suffix) for suffix in suffixes),
        *(memory / name for name in ("events.jsonl", "switches.json")),
        answer_path(page, "p-1"),
    ):
        plant(path)
    begin = time.monotonic()
    assert read_output(page) is None
    assert read_error(page) is None
    assert read_torchrun_error(page.with_suffix(".error.json")) is None
    assert read_spans(page.with_suffix(".spans.jsonl")) == []
    assert read_events(memory) == []
    assert read_answer(page, "p-1") is None
    for error, read in (
        (PageError, lambda: read_page(page)),
        (PageError, lambda: read_operations(page.with_suffix(".ops"))),
        (ValueError, lambda: read_switches(memory / "switches.json")),
    ):
        with pytest.raises(error, match=re.escape(str(memory))):
            read()
    assert time.monotonic() - begin < 10.0


def test_no_folder_of_an_attempt_or_of_a_job_is_followed_as_a_link(memory: Path) -> None:
    real = memory / "jobs" / "real"
    page = written_page(real / "0", steps=1)
    (real / "1").symlink_to("0")
    (real.parent / "linked").symlink_to("real")
    assert list_attempts(real) == [real / "0"]
    assert list_jobs(memory) == [real]
    for path in (real / "1" / page.name, real.parent / "linked" / "0" / page.name):
        with pytest.raises(PageError, match="is a link or no folder"):
            read_page(path)
    for folder in (real / "1", real.parent / "linked" / "0"):
        with pytest.raises(ForeignFileError, match="no link is followed"):
            list_pages(folder)
    with pytest.raises(ForeignFileError, match="linked is refused: it is a link or no folder"):
        owner_of(real.parent / "linked")
    with pytest.raises(ValueError, match="job 'linked' is not under"):
        find_job("linked", memory)


def test_a_link_that_the_user_names_leads_to_the_folder_of_the_job(memory: Path) -> None:
    page = written_page(memory / "job" / "0", steps=1)
    (memory / "latest").symlink_to("job")
    assert read_page(list_pages(find_job(str(memory / "latest")) / "0")[0]).path == page


def test_the_folder_above_jobs_may_be_a_link_and_jobs_may_not(memory: Path) -> None:
    job = memory / "node" / "jobs" / "12345"
    append_event(job, Event(kind="job_started", job_id="12345", attempt=0))
    memory.joinpath("link").symlink_to("node")  # the node's; the one below may be a pod's
    assert [path.name for path in list_jobs(memory / "link")] == [job.name]
    memory.joinpath("jobs").symlink_to(job.parent)
    assert list_jobs(memory) == []


def test_a_folder_that_is_replaced_by_a_link_is_refused_at_the_next_reading(memory: Path) -> None:
    page = written_page(memory / "job" / "0", steps=1)
    reader = PageReader(page)
    assert reader.read().state["steps"] == 1
    with open_foreign(page) as descriptor:
        page.parent.rename(memory / "moved")
        page.parent.symlink_to(memory / "moved")
        assert os.pread(descriptor, 8, 0)[:5] == b"LKSTP"  # what was checked is what is read
    with pytest.raises(PageError, match="no link is followed"):
        reader.read()
    assert find_process(read_page(memory / "moved" / page.name)) is not None


@as_root
def test_a_file_of_another_user_is_refused_in_a_sentence_with_both(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = memory / "jobs" / "job"
    page = written_page(job / "0", steps=1)
    os.chown(page, NEIGHBOUR, -1)
    with pytest.raises(
        PageError, match=f"it is of user {NEIGHBOUR}, in a folder of user 0"
    ) as caught:
        read_page(page)
    assert caught.value.reason == "io"
    for path in (job, page.parent):
        os.chown(path, NEIGHBOUR, -1)
    assert read_page(page).state["steps"] == 1
    with pytest.raises(PageError, match="of a job of user 7"):
        PageReader(page, owner=7).read()
    assert owner_of(job) == NEIGHBOUR
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            with pytest.raises(PageError):
                PageReader(page, owner=7).read()
    assert len(caplog.records) <= 1  # once a minute a folder


@as_root
def test_a_folder_of_another_user_is_no_attempt_of_a_job(memory: Path) -> None:
    for attempt in ("0", "1"):
        written_page(memory / "job" / attempt, steps=1)
    os.chown(memory / "job" / "1", TENANT, -1)
    assert list_attempts(memory / "job") == [memory / "job" / "0"]


@as_root
def test_a_tenant_cannot_have_a_private_file_of_a_neighbour_read_as_his_own(memory: Path) -> None:
    root = shared_root(memory)
    job, secret = root / "jobs" / "job", root / "secret"
    secret.write_bytes(b"{}")
    os.chown(secret, NEIGHBOUR, NEIGHBOUR)
    secret.chmod(0o600)

    def attack() -> None:
        (job / "0").mkdir(parents=True)
        (job / "0" / "rank-00000.error.json").symlink_to(secret)
        (job / "events.jsonl").symlink_to(secret)

    run_as(TENANT, attack)
    second_name = job / "0" / "rank-00001.error.json"
    second_name.hardlink_to(secret)  # as a kernel would let a tenant do without protected_hardlinks
    for path in (second_name, second_name.with_name("rank-00000.error.json"), job / "events.jsonl"):
        with pytest.raises(ForeignFileError, match=f"in a folder of user {TENANT}"):
            read_foreign(path, 1024)


_PEAK = """
import sys, tracemalloc
from pathlib import Path
from lockstep_records.files import jobs
jobs.MAX_ENTRIES = 3000
attempt = Path(sys.argv[1])
jobs.list_pages(attempt, limit=1)
tracemalloc.start()
pages = jobs.list_pages(attempt, limit=100)
print(tracemalloc.get_traced_memory()[1])
assert len(pages) == 100 and pages == sorted(pages)
assert len(jobs.list_pages(attempt)) == 3000
"""


def test_a_folder_of_many_entries_costs_no_memory(memory: Path) -> None:
    attempt = memory / "jobs" / "job" / "0"
    attempt.mkdir(parents=True)
    for number in range(20_000):
        os.close(os.open(attempt / f"rank-{number:05d}.page", os.O_CREAT | os.O_WRONLY))
    # In a process of its own: other threads of this one allocate too.
    command = [sys.executable, "-c", _PEAK, str(attempt)]
    peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(peak) < 100_000
    assert len([*scan_foreign(attempt, jobs.JOB_ID, 7)]) == 7


def test_the_jobs_of_a_user_beyond_the_bound_leave_those_of_others(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_JOBS_PER_USER", 3)
    for name in ("a", "b", "c", "d", "e"):
        (memory / "jobs" / name).mkdir(parents=True)
    (memory / "jobs" / "file").touch()
    assert [job.name for job in list_jobs(memory)] == ["c", "d", "e"]
    if os.geteuid() == 0:
        os.chown(memory / "jobs" / "a", TENANT, -1)
        assert [job.name for job in list_jobs(memory)] == ["a", "c", "d", "e"]


def test_of_many_attempts_the_last_ones_are_listed(memory: Path) -> None:
    for number in (0, 1, 2, 9, 10, 11):
        (memory / str(number)).mkdir()
    assert [path.name for path in list_attempts(memory, limit=3)] == ["9", "10", "11"]


def test_of_a_file_of_events_beyond_the_bound_the_first_and_the_last_are_read(memory: Path) -> None:
    append_event(memory, Event(kind="job_started", job_id="job", attempt=0))
    path = memory / "events.jsonl"
    with path.open("ab") as file:
        file.truncate(MAX_EVENTS_BYTES * 2)
    append_event(memory, Event(kind="job_finished", job_id="job", attempt=0))
    assert [event.kind for event in read_events(memory)] == ["job_started", "job_finished"]
    with path.open("ab") as file:
        file.truncate(_ONE_TERABYTE)
    assert [event.kind for event in read_events(memory)] == ["job_started"]


def test_a_trace_that_is_a_link_is_not_moved_and_a_true_one_is(memory: Path) -> None:
    page, out = memory / "0" / "rank-00000.page", memory / "out"
    page.parent.mkdir()
    assert fetch(page, "p-1", out) is None
    trace_path(page, "p-1").symlink_to("/etc/passwd")
    with pytest.raises(ForeignFileError, match="it is a link"):
        fetch(page, "p-1", out)
    trace_path(page, "p-1").unlink()
    trace_path(page, "p-1").write_bytes(b"{}" * (1 << 20))
    answer_path(page, "p-1").write_bytes(b"{}")
    moved = fetch(page, "p-1", out)
    assert moved is not None
    assert moved.read_bytes() == b"{}" * (1 << 20)
    assert [*page.parent.iterdir()] == []
