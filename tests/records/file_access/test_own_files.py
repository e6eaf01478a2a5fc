"""Writers of a job's files: into one's own folder, which nobody else may write, and no other."""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sample_pages import IDENTITY, written_page

from lockstep_records.events.event import Event, append_event, read_events
from lockstep_records.file_access.atomic_file import write_atomically
from lockstep_records.file_access.foreign_files import ForeignFileError
from lockstep_records.file_access.own_files import open_own_file, replace_own_file
from lockstep_records.files.job_status import archived_jobs, note_archive
from lockstep_records.files.jobs import create_job_folder, page_path
from lockstep_records.files.last_output import OutputRing
from lockstep_records.files.operations import OperationWriter
from lockstep_records.files.rank_files import write_rank_file
from lockstep_records.files.spans import Span, SpanSpool, spool_path
from lockstep_records.files.switches import Switches, read_switches, write_switches
from lockstep_records.page.writer import NoPageError, PageWriter

from ..two_users import NEIGHBOUR, TENANT, as_root, run_as, shared_root

EVENT = Event(kind="job_started", job_id="job", attempt=0)
SPAN = Span(
    name="checkpoint", number=0, trace_id="1" * 32, span_id="2" * 16, parent_id="3" * 16,
    start_ns=1, end_ns=2,
)  # fmt: skip


def _write_span(page: Path) -> None:
    spool = SpanSpool(spool_path(page))
    spool.write(SPAN)
    spool.close()
    if spool.lost:
        raise ForeignFileError(page, "lost")


def _write_page(page: Path) -> None:
    PageWriter(page, IDENTITY, 4).close()


WRITERS: dict[str, Callable[[Path], object]] = {
    "page": _write_page,
    "operations": lambda page: OperationWriter(page.with_suffix(".ops"), 0, 4).close(),
    "output": lambda page: OutputRing(page).close(),
    "span": _write_span,
    "rank file": lambda page: write_rank_file(page, ".flight.json", b"{}"),
    "event": lambda page: append_event(page.parents[1], EVENT),
    "switches": lambda page: write_switches(page.parents[1], Switches()),
}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@writers
def test_a_writer_makes_files_that_its_group_reads_and_others_do_not(
    memory: Path, write: Callable[[Path], object]
) -> None:
    umask = os.umask(0)
    try:
        page = page_path(memory, "job", 0, 0)
        page.parent.mkdir(parents=True, mode=0o750)
        for folder in (page.parents[1], page.parent):
            folder.chmod(0o750)
        write(page)
    finally:
        os.umask(umask)
    [file] = [path for path in (memory / "jobs" / "job").rglob("*") if path.is_file()]
    assert file.stat().st_mode & 0o7777 == 0o640


@as_root
@writers
@pytest.mark.parametrize("level", [0, 1], ids=["attempt", "job"])
def test_no_writer_writes_into_a_folder_that_another_user_has_claimed(
    memory: Path, write: Callable[[Path], object], level: int
) -> None:
    page = page_path(shared_root(memory), "job", 0, 0)
    page.parent.mkdir(parents=True)
    for folder in (page.parent, page.parents[1]):
        folder.chmod(0o777)
        os.chown(folder, TENANT, -1)
    os.chown(page.parents[level], NEIGHBOUR, -1)

    def attempt() -> None:
        os.umask(0)
        with pytest.raises((ForeignFileError, NoPageError), match=r"belongs to user|lost|write to"):
            write(page)

    run_as(TENANT, attempt)
    assert [path for path in (memory / "jobs").rglob("*") if path.is_file()] == []


@writers
def test_no_writer_writes_into_a_folder_that_others_may_write_to(
    memory: Path, write: Callable[[Path], object]
) -> None:
    page = page_path(memory, "job", 0, 0)
    page.parent.mkdir(parents=True)
    page.parents[1].chmod(0o770)
    page.parent.chmod(0o770)
    with pytest.raises((ForeignFileError, NoPageError), match=r"others may write to it|lost"):
        write(page)
    assert [path for path in memory.rglob("*") if path.is_file()] == []


@writers
def test_no_writer_follows_a_link_in_the_place_of_its_file(
    memory: Path, write: Callable[[Path], object]
) -> None:
    page, victim = page_path(memory, "job", 0, 0), memory / "victim"
    page.parent.mkdir(parents=True)
    victim.write_bytes(b"mine")
    for path in (
        *(page.with_suffix(suffix) for suffix in (".ops", ".page", ".stderr", ".spans.jsonl")),
        page.with_suffix(".flight.json"),
        *(page.parents[1] / name for name in ("events.jsonl", "switches.json")),
    ):
        path.symlink_to(victim)
    # Those that replace a file replace the link.
    with suppress(ForeignFileError, NoPageError):
        write(page)
    assert victim.read_bytes() == b"mine"


def test_a_folder_in_the_place_of_an_attempt_that_is_a_link_takes_no_page(memory: Path) -> None:
    written_page(memory / "jobs" / "other" / "0", steps=1)
    page = page_path(memory, "job", 0, 0)
    page.parents[1].mkdir(parents=True)
    page.parent.symlink_to(memory / "jobs" / "other" / "0")
    with pytest.raises(NoPageError, match="no link is followed; give the job another id"):
        _write_page(page)


def test_the_folder_of_a_job_is_not_writable_for_others_whatever_the_umask_is(memory: Path) -> None:
    umask = os.umask(0)
    try:
        create_job_folder(memory / "jobs" / "launched")
        _write_page(page_path(memory, "attached", 0, 0))
        append_event(memory / "jobs" / "event", EVENT)
    finally:
        os.umask(umask)
    for job in (memory / "jobs").iterdir():
        assert job.stat().st_mode & 0o777 == 0o750, job
    assert (memory / "jobs" / "attached" / "0").stat().st_mode & 0o777 == 0o750


@as_root
def test_an_agent_that_runs_as_root_extends_events_of_a_job_and_creates_none(memory: Path) -> None:
    job = shared_root(memory) / "jobs" / "job"
    run_as(TENANT, lambda: append_event(job, EVENT))
    append_event(job, EVENT)
    assert len(read_events(job)) == 2
    assert (job / "events.jsonl").stat().st_uid == TENANT
    (job / "events.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        append_event(job, EVENT)
    secret = memory / "secret"
    secret.write_bytes(b"")
    (job / "events.jsonl").symlink_to(secret)
    with pytest.raises(ForeignFileError, match=f"it is a link, in a folder of user {TENANT}"):
        append_event(job, EVENT)
    (job / "events.jsonl").unlink()
    os.mkfifo(job / "events.jsonl")
    with pytest.raises(ForeignFileError, match="no regular file"):
        append_event(job, EVENT)
    assert secret.read_bytes() == b""


@as_root
def test_switches_that_root_sets_belong_to_the_user_of_the_job(memory: Path) -> None:
    job = shared_root(memory) / "jobs" / "job"
    run_as(TENANT, lambda: create_job_folder(job))
    path = write_switches(job, Switches(sample_every=7))
    assert path.stat().st_uid == TENANT
    assert read_switches(path).sample_every == 7


def test_what_cannot_be_replaced_leaves_nothing(memory: Path) -> None:
    (memory / "switches.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_own_file(memory / "switches.json", b"{}")
    assert [path.name for path in memory.iterdir()] == ["switches.json"]


def test_a_file_that_must_be_there_is_not_created(memory: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_own_file(memory / "absent", os.O_WRONLY)


def test_notes_of_the_archive_go_into_no_folder_behind_a_link(memory: Path) -> None:
    note_archive(memory, ["a"])
    assert archived_jobs(memory) == frozenset({"a"})
    (memory / "archived").rename(memory / "elsewhere")
    (memory / "archived").symlink_to("elsewhere")
    with pytest.raises(ForeignFileError, match="no link is followed"):
        note_archive(memory, ["b"])
    assert [path.name for path in (memory / "elsewhere").iterdir()] == ["a"]
    assert archived_jobs(memory) is None


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_in_one_move_with_its_mode(tmp_path: Path, *, durable: bool) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, "old")
    write_atomically(path, b"new", mode=0o640, durable=durable)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["state.json"]  # noqa: PTH208  # hidden files too


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    (path / "inside").write_text("x", encoding="utf-8")
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, "new")
    assert sorted(os.listdir(tmp_path)) == ["taken"]  # noqa: PTH208  # hidden files too


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device needs root")
def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    null = tmp_path / "null"
    os.mknod(null, stat.S_IFCHR | 0o666, Path("/dev/null").stat().st_rdev)
    write_atomically(null, "text")
    assert stat.S_ISCHR(null.stat().st_mode)
    assert list(tmp_path.iterdir()) == [null]


def test_a_pipe_gets_the_content_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):
        write_atomically(pipe, "nobody reads")
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        write_atomically(pipe, "x" * 100)
        assert reader.read() == "x" * 100
    assert stat.S_ISFIFO(pipe.stat().st_mode)
