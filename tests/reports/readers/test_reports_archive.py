"""A report on a job of an archive says what one on its pages says, as far as the archive goes."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockstep_records.archive.manifest import Manifest
from lockstep_records.archive.reader import JobArchive
from lockstep_records.archive.writer import ColumnWriter, Store
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import list_pages
from lockstep_records.files.operations import CODES, OperationWriter, operations_path
from lockstep_records.page.layout import EXTRAS, ROW_FLAGS
from lockstep_records.page.reader import read_page
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.readers.archive import read_archive
from lockstep_reports.readers.engine import find_engine
from lockstep_reports.recording.recording import Bound, Recording, Window, cut_inside
from lockstep_reports.report import make_document

from ..corpus.cases import list_cases
from ..corpus.made_pages import write_pages
from ..corpus.made_run import MadeRun

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

    def __init__(self, files: Any, failures: int) -> None:
        self._files, self._failures, self._calls = files, failures, dict[Any, int]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*args: Any, **options: Any) -> Any:
            key = (name, args, *options.items())
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] <= self._failures:
                raise OSError(503, "slow down")
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


def test_a_store_that_never_answers_is_given_up(memory: Path, tmp_path: Path) -> None:
    folder = pack(write_pages(SLOW.source, memory), tmp_path)
    waits = list[float]()
    archive = JobArchive(Moody(fsspec.filesystem("file"), 99), str(folder), sleep=waits.append)
    with pytest.raises(ValueError, match=r"asked 5 times: .*slow down"):
        read_archive(archive, OPTIONS)
    assert sum(waits) < 10


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def without_column(name: str) -> Callable[[Path], None]:
    def drop(path: Path) -> None:
        table = pq.read_table(path)
        pq.write_table(table.drop_columns([name]), path)
        resize(path)

    return drop


def with_cells(name: str, value: Any, rows: range | None = None) -> Callable[[Path], None]:
    """Another value in some rows of a column, or in all of them."""

    def write(path: Path) -> None:
        table = pq.read_table(path)
        at, cells = table.column_names.index(name), table[name].to_pylist()
        for row in rows or range(len(cells)):
            cells[row] = value
        changed = pa.array(cells, table.schema.field(name).type)
        pq.write_table(table.set_column(at, name, changed), path, row_group_size=len(table) // 2)
        resize(path)

    return write


def rot_one_group(path: Path) -> None:
    """Flips bits in the step numbers of the first of two row groups."""
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=len(table) // 2, write_page_checksum=True)
    resize(path)
    begin = pq.read_metadata(path).row_group(0).column(table.column_names.index("step"))
    data = bytearray(path.read_bytes())
    data[begin.data_page_offset + begin.total_compressed_size - 1] ^= 255
    path.write_bytes(data)


def as_text(path: Path) -> None:
    table = pq.read_table(path)
    at = table.column_names.index("step")
    pq.write_table(table.set_column(at, "step", table["step"].cast(pa.string())), path)
    resize(path)


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def fill_up(path: Path) -> None:
    table = pq.read_table(path)
    texts = pa.array([bytes(1 << 28)] * len(table), pa.binary())
    at = table.column_names.index("stderr")
    pq.write_table(table.set_column(at, "stderr", texts), path, use_dictionary=False)


def double_column(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.append_column("step", table["step"]), path)
    resize(path)


def resize(path: Path) -> None:
    """The manifest is right about the size of a file that was written anew."""
    size = path.stat().st_size
    first_row = int(path.stem.removeprefix("steps-"))
    edit_stretches(
        lambda each: {"size_bytes": size if each["first_row"] == first_row else each["size_bytes"]}
    )(path)


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Changes what the manifest says of the attempt, in the folder of which a file lies."""

    def apply(path: Path) -> None:
        manifest = path.parents[1] / "manifest.json"
        fields = json.loads(manifest.read_bytes())
        change(fields["attempts"]["0"])
        manifest.write_text(json.dumps(fields))

    return apply


def edit_stretches(change: Callable[[dict[str, Any]], dict[str, int]]) -> Callable[[Path], None]:
    return edit(lambda part: [each.update(change(each)) for each in part["stretches"]])


def replace_manifest(data: bytes) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        (path.parents[1] / "manifest.json").write_bytes(data)

    return replace


# What is done to a file of one node of four, and what the report says of it.
HOSTILE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "the rows are cut off": ("steps-*", truncate, "is damaged or cut off"),
    "the rows are gone": ("steps-*", Path.unlink, "is not there"),
    "a bit of the rows is wrong": ("steps-*", flip, "is damaged or cut off"),
    "the times of a phase are gone": (
        "steps-*", without_column("forward_seconds"), "lacks the column forward_seconds"),
    "no time of a phase is a number": (
        "steps-*", with_cells("backward_seconds", float("nan")), "rows with values that no step"),
    "the step numbers are texts": ("steps-*", as_text, "has column step as string"),
    "the ranks are cut off": ("ranks.parquet", truncate, "ranks.parquet is damaged"),
    "the ranks are gone": ("ranks.parquet", Path.unlink, "is not there"),
    "the manifest promises more rows": (
        "steps-*", edit_stretches(lambda each: {"rows": 2 * each["rows"]}), "its manifest"),
    "the manifest promises a larger file": (
        "steps-*", edit_stretches(lambda _: {"size_bytes": 1 << 40}), "cut off"),
    "the manifest hides the rows": (
        "steps-*", edit(lambda part: part.update(stretches=[])), "less than half of the steps"),
    "the manifest names a file twice": (
        "steps-*", edit(lambda part: part["stretches"].append(part["stretches"][0])), "same rows"),
    "the file is a pipe": ("steps-*", make_pipe, "is not a regular file"),
    "the ranks are a bomb": ("ranks.parquet", fill_up, "unpacks to"),
    "a column is there twice": ("steps-*", double_column, "two columns of one name"),
    "the manifest names a file elsewhere": (
        "steps-*", edit_stretches(lambda each: {"first_row": each["first_row"] + 7}),
        "is not there"),
    "the manifest has a rank outside the world": (
        "steps-*", edit(lambda part: part.update(ranks=[1 << 30])), "outside its 8"),
    "the manifest is of another job": (
        "steps-*",
        replace_manifest(msgspec.json.encode(Manifest(job_id="other", node="node-1"))),
        "of job 'other'"),
    "the manifest is no JSON": ("steps-*", replace_manifest(b"{"), "manifest of node node-1"),
    "the manifest is gone": (
        "steps-*",
        lambda path: (path.parents[1] / "manifest.json").unlink(missing_ok=True),
        "no manifest"),
}  # fmt: skip


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
    assert sentence in " ".join(recording.steps.notes)
    assert recording.steps.missing_ranks == (2, 3)
    evidence = " ".join(make_document(recording).published.verdict.evidence)
    assert "2 ranks of 8 left no readable page (2, 3)" in evidence


WILD = [
    ("flags", 2**32 - 1), ("flags", 1 << ROW_FLAGS.index("device")), ("step", 2**62), ("step", -1),
    ("seconds", float("nan")), ("backward_seconds", 3e38), ("backward_seconds", float("nan")),
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
