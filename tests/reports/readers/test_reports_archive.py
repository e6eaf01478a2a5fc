"""A report on a job of an archive says what one on its pages says, as far as the archive goes."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockstep_records.archive import reader, writer
from lockstep_records.archive.reader import JobArchive
from lockstep_records.archive.writer import ColumnWriter, Store
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import list_pages
from lockstep_records.files.operations import CODES, OperationWriter, operations_path
from lockstep_records.page.layout import EXTRAS, ROW_FLAGS
from lockstep_records.page.reader import read_page
from lockstep_reports.readers import ReadOptions, archive_nodes, read_source
from lockstep_reports.readers.archive import read_archive
from lockstep_reports.readers.engine import find_engine
from lockstep_reports.recording.recording import Bound, Recording, Window, cut_inside
from lockstep_reports.report import make_document

from ..corpus.cases import list_cases
from ..corpus.made_pages import write_pages
from ..corpus.made_run import MadeRun
from .damaged_archives import (
    HOSTILE,
    LAYOUTS,
    edit,
    resize,
    rot_one_group,
    truncate,
    with_cells,
    without_column,
)

OPTIONS = ReadOptions(now_seconds=2e9)
MADE = [c for c in list_cases() if isinstance(c.source, MadeRun) and c.source.ranks <= 8]
SLOW = next(c for c in MADE if c.source.nodes > 1 and c.source.ranks == 8)


def pack(job: Path, target: Path) -> Path:
    """The folder of the job in an archive of columns."""

    def put(path: str, data: bytes) -> None:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(data)

    def get(path: str) -> bytes:
        return (target / path).read_bytes()

    ColumnWriter(job, Store(get, put)).pack(job.stat().st_uid, is_over=True)
    return target / job.name


def published(recording: Any) -> Any:
    """The report without the folder that it was read from."""
    document = make_document(recording).published
    fields = json.loads(msgspec.json.encode(document, enc_hook=str))
    fields.pop("source", None)
    return fields


@pytest.mark.parametrize("case", MADE[::5], ids=lambda case: case.name)
def test_the_report_on_columns_is_that_on_pages_to_the_digit(
    case: Any, memory: Path, tmp_path: Path
) -> None:
    job = write_pages(case.source, memory)
    of_columns = published(read_source(str(pack(job, tmp_path)), OPTIONS))
    assert of_columns == published(read_source(str(job), OPTIONS))


@pytest.mark.parametrize("case", MADE[::9], ids=lambda case: case.name)
@pytest.mark.parametrize("window", [Window(Bound(20), Bound(35)), Window(Bound(step=30))])
def test_a_window_of_columns_gives_what_the_same_window_of_pages_does(
    window: Window, case: Any, memory: Path, tmp_path: Path
) -> None:
    job = write_pages(case.source, memory)
    options = replace(OPTIONS, window=window, only_window=True)
    recordings = [read_source(str(folder), options) for folder in (job, pack(job, tmp_path))]
    first, second = (
        published(cut_inside(each, window)) for each in recordings if isinstance(each, Recording)
    )
    assert first == second


@pytest.mark.parametrize("is_packed", [False, True])
def test_raw_pages_in_an_archive_count_where_columns_do_not_reach(
    is_packed: bool, memory: Path, tmp_path: Path
) -> None:
    job = write_pages(SLOW.source, memory)
    folder = pack(job, tmp_path) if is_packed else tmp_path / job.name
    shutil.copytree(job / "0", folder / "0")
    if is_packed:  # as if the attempt had not ended: its stretches, and no table of ranks
        for path in folder.rglob("steps-000000000000*"):
            edit(lambda part: part.update(is_complete=False))(path)
    recording = read_source(f"file://{folder}", OPTIONS)
    assert published(recording) == published(read_source(str(job), OPTIONS))


def test_a_file_that_is_written_again_is_the_same_file(memory: Path, tmp_path: Path) -> None:
    job = write_pages(SLOW.source, memory)
    folders = [pack(job, tmp_path / name) for name in ("once", "again")]
    first, second = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*.*")} for f in folders)
    assert first == second
    assert len(first) == 4 * SLOW.source.nodes


def write_operations(job: Path, slow: tuple[int, ...]) -> None:
    """Two operations of each third step beside each page, the second the wait for the first."""
    for path in list_pages(job / "0"):
        rank = read_page(path).identity["rank"]
        writer = OperationWriter(operations_path(path), rank, 1024)
        own_ns = 350_000_000 if rank in slow else 50_000_000
        for step in range(0, 120, 3):
            for name, end_ns in (("backward-compute", own_ns), ("grads-sync", 400_000_000)):
                begin_ns = 0 if name == "backward-compute" else own_ns
                writer.append(step, CODES[name], begin_ns, end_ns, 0)
        writer.close()


def test_operations_of_sampled_steps_say_the_same_from_columns_as_from_their_files(
    memory: Path, tmp_path: Path
) -> None:
    job = write_pages(SLOW.source, memory)
    verdict = published(read_source(str(job), OPTIONS))["verdict"]
    write_operations(job, tuple(verdict["ranks"]))
    folder, of_pages = pack(job, tmp_path), published(read_source(str(job), OPTIONS))
    assert published(read_source(str(folder), OPTIONS)) == of_pages
    assert (
        "it spent (median) 350 ms in backward-compute, the others 50 ms; 50 ms in grads-sync,"
        " the others 350 ms."
    ) in " ".join(of_pages["verdict"]["evidence"])
    for path in folder.rglob("operations-*"):
        truncate(path)
    recording = read_source(str(folder), OPTIONS)
    assert isinstance(recording, Recording)
    assert "operations-000000000000.parquet is damaged" in " ".join(recording.steps.notes)
    assert published(recording)["verdict"] == verdict


class Moody:
    """A store of which each operation fails a few times before it answers."""

    def __init__(self, files: Any, failures: int, error: Exception | None = None) -> None:
        self._files, self._failures, self._calls = files, failures, dict[Any, int]()
        self._error = error or OSError(503, "slow down")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*args: Any, **options: Any) -> Any:
            key = (name, args, *options.items())
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] <= self._failures:
                raise self._error
            return getattr(self._files, name)(*args, **options)

        return ask


@pytest.mark.parametrize("failures", [0, 1, 4])
def test_a_store_that_answers_503_now_and_then_is_calls_again(
    failures: int, memory: Path, tmp_path: Path
) -> None:
    job = write_pages(SLOW.source, memory)
    files, waits = Moody(fsspec.filesystem("file"), failures), list[float]()
    archive = JobArchive(files, str(pack(job, tmp_path)), sleep=waits.append)
    assert published(read_archive(archive, OPTIONS)) == published(read_source(str(job), OPTIONS))
    assert bool(waits) == bool(failures)


@pytest.mark.server
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_ray_of_which_a_worker_dies_answers_what_one_process_does(
    memory: Path, tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    job = pack(write_pages(SLOW.source, memory), tmp_path / "archive")
    run = find_engine("ray", None)
    assert run is not None
    died = tmp_path / "died"

    def die_once(number: int) -> int:
        if number == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return -number

    try:
        assert list(run(die_once, range(3))) == [0, -1, -2]
        assert died.exists()
        by_ray = read_source(str(job), replace(OPTIONS, engine=run))
        assert published(by_ray) == published(read_source(str(job), OPTIONS))
    finally:
        ray.shutdown()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://[::1]:1", "127.0.0.1:99999"])
def test_a_ray_that_is_not_there_is_said_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(ValueError, match=f"no Ray answers at --address {re.escape(address)}"):
        find_engine("ray", address)


def test_a_store_that_never_answers_is_given_up(memory: Path, tmp_path: Path) -> None:
    folder = pack(write_pages(SLOW.source, memory), tmp_path)
    waits = list[float]()
    archive = JobArchive(Moody(fsspec.filesystem("file"), 99), str(folder), sleep=waits.append)
    with pytest.raises(ValueError, match=r"asked 5 times: .*slow down"):
        read_archive(archive, OPTIONS)
    assert sum(waits) < 10


@pytest.mark.parametrize("error", [PermissionError, NotADirectoryError, IsADirectoryError])
def test_an_answer_that_stays_so_is_asked_for_once(error: type[OSError], tmp_path: Path) -> None:
    waits = list[float]()
    moody = Moody(fsspec.filesystem("file"), 99, error(13, "it is so"))
    archive = JobArchive(moody, str(tmp_path / "job"), sleep=waits.append)
    with pytest.raises(ValueError, match="it is so"):
        read_archive(archive, OPTIONS)
    assert waits == []


@pytest.mark.parametrize("name", ["a b", "%2e%2e", "made#x", "[1]", "*", "x" * 128, "made\x1b[31m"])
def test_a_name_that_no_job_has_is_refused(name: str, memory: Path, tmp_path: Path) -> None:
    folder = pack(write_pages(SLOW.source, memory), tmp_path)
    folder = folder.rename(folder.with_name(name))
    for path in folder.glob("nodes/*/manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"job_id": name}))
    for source in (str(folder), f"file://{folder}"):
        with pytest.raises(ValueError, match="holds no job of an archive"):
            read_source(source, OPTIONS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_of_a_file_changes_nothing(name: str, memory: Path, tmp_path: Path) -> None:
    folder = pack(write_pages(SLOW.source, memory), tmp_path)
    expected = published(read_source(str(folder), OPTIONS))
    for path in folder.rglob("steps-*"):
        table, group_rows = LAYOUTS[name](pq.read_table(path))
        pq.write_table(table, path, row_group_size=group_rows)
        resize(path)
    assert published(read_source(str(folder), OPTIONS)) == expected


def test_a_window_reads_the_row_groups_in_its_reach(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (archive_nodes, writer):
        monkeypatch.setattr(module, "GROUP_ROWS", 16)
    folder, num_groups = pack(write_pages(SLOW.source, memory), tmp_path), set[int]()
    read = reader._read_groups  # a file of a test is shorter than the end that is always read

    def count(file: Any, numbers: Sequence[int], columns: list[str]) -> Any:
        if "backward_seconds" in columns:
            num_groups.add(len(numbers))
        return read(file, numbers, columns)

    monkeypatch.setattr(reader, "_read_groups", count)
    read_source(
        str(folder), replace(OPTIONS, window=Window(Bound(200), Bound(210)), only_window=True)
    )
    assert max(num_groups) <= 3
    read_source(str(folder), OPTIONS)
    assert max(num_groups) > 5


def test_steps_that_no_file_gives_are_not_called_none(memory: Path, tmp_path: Path) -> None:
    folder = pack(write_pages(SLOW.source, memory), tmp_path)
    for path in folder.rglob("steps-*"):
        without_column("forward_seconds")(path)
    with pytest.raises(ValueError, match="lacks the column forward_seconds"):
        read_source(str(folder), OPTIONS)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_read_is_left_out_and_the_report_says_so(
    name: str, memory: Path, tmp_path: Path
) -> None:
    pattern, damage, sentence = HOSTILE[name]
    folder = pack(write_pages(SLOW.source, memory), tmp_path)
    for path in (folder / "nodes" / "node-1" / "0").glob(pattern):
        damage(path)
    recording = read_source(str(folder), OPTIONS)
    assert isinstance(recording, Recording)
    notes = " ".join(recording.steps.notes)
    assert sentence in notes
    assert ("with values" in notes) == ("with values" in sentence)
    assert recording.steps.missing_ranks == (2, 3)
    evidence = " ".join(make_document(recording).published.verdict.evidence)
    assert "2 ranks of 8 left no readable page (2, 3)" in evidence


def test_a_local_file_that_may_not_be_opened_is_left_out(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, open_file = pack(write_pages(SLOW.source, memory), tmp_path), pa.OSFile

    def refuse(path: str) -> Any:
        if "node-1/0/steps-" in path:
            raise PermissionError(13, "Permission denied")
        return open_file(path)

    monkeypatch.setattr(pa, "OSFile", refuse)
    recording = read_source(str(folder), OPTIONS)
    assert isinstance(recording, Recording)
    assert "cannot be read: [Errno 13] Permission denied" in " ".join(recording.steps.notes)
    assert recording.steps.missing_ranks == (2, 3)


WILD = [
    ("flags", 2**32 - 1), ("flags", 1 << ROW_FLAGS.index("device")), ("step", 2**62), ("step", -1),
    ("rank", 5), ("rank", -1), ("seconds", float("nan")),
    ("backward_seconds", 3e38), ("backward_seconds", float("nan")),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value"), WILD)
def test_ten_damaged_rows_turn_no_report_over(
    column: str, value: float, memory: Path, tmp_path: Path
) -> None:
    folder = pack(write_pages(SLOW.source, memory), tmp_path)
    undamaged = published(read_source(str(folder), OPTIONS))["verdict"]
    with_cells(column, value, range(10))(next(folder.rglob("node-1/0/steps-*")))
    recording = read_source(str(folder), OPTIONS)
    verdict = published(recording)["verdict"]
    assert isinstance(recording, Recording)
    assert [verdict[name] for name in ("kind", "ranks", "phase")] == [
        undamaged[name] for name in ("kind", "ranks", "phase")
    ]
    # A flag that may be true damages no row: its times are by another clock, and do not count.
    is_known = column == "flags" and value < 1 << len(ROW_FLAGS)
    assert ("left out: 10 rows" in " ".join(recording.steps.notes)) != is_known
    assert recording.steps.missing_ranks == ()


def test_a_rotten_row_group_costs_only_its_rows(memory: Path, tmp_path: Path) -> None:
    folder = pack(write_pages(SLOW.source, memory), tmp_path)
    path = next(folder.rglob("node-1/0/steps-*"))
    num_rows = pq.read_metadata(path).num_rows
    rot_one_group(path)
    recording = read_source(str(folder), OPTIONS)
    assert isinstance(recording, Recording)
    assert f"left out: {num_rows // 2:,} rows" in " ".join(recording.steps.notes)
    share = 1 - num_rows // 2 / sum(pq.read_metadata(p).num_rows for p in folder.rglob("steps-*"))
    assert f"gives {share:.0%} of the ranks' steps" in " ".join(recording.steps.notes)


def test_an_extra_that_an_older_archive_lacks_is_unknown_there(
    memory: Path, tmp_path: Path
) -> None:
    folder = pack(write_pages(SLOW.source, memory), tmp_path)
    for path in folder.rglob("steps-*"):
        names = pq.read_schema(path).names
        assert {name for name in EXTRAS if name in names or name.replace("seconds", "ns") in names}
        without_column(next(name for name in names if name.startswith("run_queue")))(path)
    recording = read_source(str(folder), OPTIONS)
    assert isinstance(recording, Recording)
    assert recording.steps.run_queue is None
    assert recording.steps.missing_ranks == ()


def test_an_empty_place_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no job of an archive; give URL/jobs/JOB_ID"):
        read_source(f"file://{tmp_path}", OPTIONS)


def test_events_of_several_nodes_are_one_story_by_time(memory: Path, tmp_path: Path) -> None:
    job = write_pages(SLOW.source, memory)
    for time, kind in ((3.0, "attempt_ended"), (1.0, "job_started")):
        append_event(job, Event(kind=kind, job_id="made", attempt=0, time=time))
    folder = pack(job, tmp_path)
    later = Event(kind="job_finished", job_id="made", attempt=0, time=2.0)
    append_event(folder, later)
    recording = read_source(str(folder), OPTIONS)
    assert isinstance(recording, Recording)
    assert [e.kind for e in recording.events] == ["job_started", "job_finished", "attempt_ended"]
