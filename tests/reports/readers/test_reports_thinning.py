"""A thinned job says what it said before, and which of its steps are quantiles by minute."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lockstep_records.archive.manifest import Stretch
from lockstep_records.archive.reader import JobArchive
from lockstep_records.archive.tables import DURATIONS, make_table, write_table
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.operations import OPERATION
from lockstep_records.page.layout import ROW_FLAGS
from lockstep_reports.analysis.steps import analyse
from lockstep_reports.arrays import dtype_of
from lockstep_reports.document.figures import draw_figure
from lockstep_reports.readers import archive as archive_reader
from lockstep_reports.readers import read_source
from lockstep_reports.readers.archive import read_archive
from lockstep_reports.recording.recording import Bound, Recording, Window, cut_inside
from lockstep_reports.thinning.command import thin
from lockstep_reports.thinning.job import Thinning, thin_job

from ..corpus.made_pages import write_pages
from ..corpus.made_run import Cost, MadeRun
from .damaged_archives import edit, truncate, with_cells
from .test_reports_archive import OPTIONS, pack, published

LATER, NOW = 4e9, 1_900_000_000
# An episode of 90 s, which lies over a minute's border, one of three steps, and a step of 60 s.
LONG = MadeRun(
    ranks=4,
    nodes=2,
    steps=2400,
    step_seconds=0.25,
    costs=(
        Cost(hits=1, seconds=0.2, first=500, until=700),
        Cost(hits=2, seconds=15.0, state="stopped", first=1298, until=1301),
        Cost(hits="all", seconds=60.0, first=1900, until=1901),
        Cost(hits=3, seconds=30.0, first=2100, until=2101),
    ),
)
NOT_FINITE, HUNG, THINNED = 1000, 2100, range(1500, 1700)


def thin_all(folder: Path, files: Any = None, **options: Any) -> Thinning:
    files = files or fsspec.filesystem("file")
    archive = JobArchive(files, str(folder), sleep=lambda _: None)
    return thin_job(archive, LATER, NOW, **options)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def add_stretch(stretch: Stretch, part: dict[str, Any]) -> None:
    part["stretches"].append(msgspec.to_builtins(stretch))


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


def misspell(path: Path) -> None:
    path.write_text(path.read_text().replace("backward", "backwarb", 1))


def report_on(folder: Path, files: Any = None) -> tuple[Any, str]:
    """The report without its notes, and these."""
    archive = JobArchive(files or fsspec.filesystem("file"), str(folder), sleep=lambda _: None)
    fields = published(read_archive(archive, OPTIONS))
    return fields, " ".join(fields.pop("notes"))


def rows_of(folder: Path, *columns: str) -> pa.Table:
    paths = sorted(folder.rglob("*steps-*.parquet"))
    tables = [pq.read_table(path, columns=list(columns) or None) for path in paths]
    return pa.concat_tables(tables, promote_options="default")


class Store:
    """Files in a store, of which each access is noted first by its name and path."""

    protocol = "file"

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note, self._files = note, fsspec.filesystem("file")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def access(path: str, *args: Any, **options: Any) -> Any:
            self._note(name, path)
            return getattr(self._files, name)(path, *args, **options)

        return access


@pytest.fixture(scope="module")
def original(module_memory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the long run, with a loss that is not finite, a hang, and operations."""
    folder = pack(write_pages(LONG, module_memory), tmp_path_factory.mktemp("archive"))
    for path in folder.rglob("steps-*.parquet"):
        numbers = pq.read_table(path, columns=["step"])["step"].to_numpy()
        for step, flag in ((NOT_FINITE, "nonfinite"), (HUNG, "hang")):
            for row in np.flatnonzero(numbers == step).tolist():
                with_cells("flags", 1 << ROW_FLAGS.index(flag), range(row, row + 1))(path)
                if flag == "nonfinite":
                    with_cells("loss", float("nan"), range(row, row + 1))(path)
    for node in (folder / "nodes").iterdir():
        operations = np.zeros(LONG.steps, dtype_of(OPERATION))
        operations["step"] = np.arange(LONG.steps)
        data = write_table([make_table(OPERATION, [(0, operations.tobytes())])])
        (node / "0/operations-000000000000.parquet").write_bytes(data)
        stretch = Stretch(
            table="operations",
            first_row=0,
            end_row=LONG.steps,
            rows=LONG.steps,
            size_bytes=len(data),
            last_step=LONG.steps - 1,
        )
        edit(partial(add_stretch, stretch))(node / "0/any")
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / original.name))


def test_a_report_on_a_thinned_job_is_that_of_before_to_the_digit(
    original: Path, folder: Path
) -> None:
    before, _ = report_on(original)
    spans = [(each["start_step"], each["end_step"], each["ranks"]) for each in before["episodes"]]
    assert spans == [(500, 699, [1]), (1298, 1300, [2])]
    assert [each["step"] for each in before["standstills"]] == [HUNG - 1]
    thinning = thin_all(folder)
    after, notes = report_on(folder)
    assert after == before
    assert f"{thinning.num_steps - thinning.num_intact:,} steps are kept as quantiles" in notes
    assert "whole are steps 0 to 66, 436 to 763" in notes
    assert thinning.bytes_after < thinning.bytes_before / 2
    # The map of late ranks is empty where steps are not there, however far its columns are apart.
    archive = JobArchive(fsspec.filesystem("file"), str(folder))
    figure = draw_figure("heat_map", analyse(read_archive(archive, OPTIONS)))
    assert "66,67,435,436" in figure


def test_rows_and_minutes_of_a_thinned_job_are_all_that_there_was_once_each(
    original: Path, folder: Path
) -> None:
    thin_all(folder)
    before, left = rows_of(original), rows_of(folder)
    minutes = pa.concat_tables(map(pq.read_table, sorted(folder.rglob("minutes-*.parquet"))))
    assert len(left) + sum(minutes["steps"].to_pylist()) == len(before)
    for name in DURATIONS:
        total, intact = (table[name].to_numpy().astype(float).sum() for table in (before, left))
        assert sum(minutes[f"{name}_sum"].to_pylist()) == pytest.approx(total - intact, rel=1e-9)
    for row in minutes.to_pylist():
        mask = pc.and_(
            pc.equal(before["rank"], row["rank"]),
            pc.and_(
                pc.greater_equal(before["step"], row["first_step"]),
                pc.less_equal(before["step"], row["last_step"]),
            ),
        )
        steps = before.filter(mask)
        assert len(steps) == row["steps"]
        expected = np.quantile(steps["seconds"].to_numpy().astype(float), (0.5, 0.95, 1.0))
        quantiles = [row[f"seconds_{name}"] for name in ("p50", "p95", "max")]
        assert quantiles == pytest.approx(expected, rel=1e-6)
        assert row["loss_max"] == 2.5
        assert not {*steps["step"].to_pylist()} & {*left["step"].to_pylist()}
    operations = pq.read_table(next(folder.rglob("part-operations-*")))["step"].to_pylist()
    assert {500, 1299, 1900} <= {*operations}
    assert not {*operations} & {*THINNED}


def test_a_window_of_what_is_whole_is_judged_as_before_and_any_other_says_what_it_lacks(
    original: Path, folder: Path
) -> None:
    thin_all(folder)

    def read(source: Path, first: int, last: int) -> Recording:
        window = Window(Bound(first), Bound(last))
        recording = read_source(str(source), OPTIONS)
        assert isinstance(recording, Recording)
        return cut_inside(recording, window)

    inside = [published(read(source, 450, 750)) for source in (original, folder)]
    assert [each.pop("notes")[-1][:9] for each in inside] == ["Only 301 ", "Only 301 "]
    assert inside[0] == inside[1]
    sentence = "steps between 1,.* are kept as quantiles of . minutes? only: the median .* 2.. ms"
    assert re.search(sentence, " ".join(read(folder, 1550, 1900).steps.notes))
    with pytest.raises(ValueError, match=f"{sentence}: none can be judged"):
        read(folder, 1550, 1600)


class KilledError(BaseException):
    """The end of the process."""


def test_a_run_that_is_killed_anywhere_leaves_before_or_after_and_the_next_one_finishes(
    original: Path, tmp_path: Path
) -> None:
    before, _ = report_on(original)
    calls = list[str]()
    done = Path(shutil.copytree(original, tmp_path / "done" / original.name))
    thin_all(done, Store(lambda *access: calls.append(access[0])))
    changes = [n for n, kind in enumerate(calls) if kind in {"open", "mv", "rm_file"}]
    # Between the first new file and the last old one, next to the file that names them too.
    for last in (*changes[:-4:10], *changes[-4:]):
        folder = Path(shutil.copytree(original, tmp_path / str(last) / original.name))
        left = [last]

        def note(*_: str, left: list[int] = left) -> None:
            if left[0] == 0:
                raise KilledError
            left[0] -= 1

        with pytest.raises(KilledError):
            thin_all(folder, Store(note))
        assert report_on(folder)[0] == before
        thin_all(folder)
        assert files_of(folder) == files_of(done)


def test_a_second_run_changes_nothing(folder: Path) -> None:
    thin_all(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert thin_all(folder).reason == "is thinned"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_reader_beside_which_a_job_is_thinned_reads_before_or_after(
    original: Path, tmp_path: Path
) -> None:
    before, calls = report_on(original)[0], list[str]()
    report_on(original, Store(lambda *access: calls.append(access[0])))
    for at in range(0, len(calls), len(calls) // 5):
        folder = Path(shutil.copytree(original, tmp_path / str(at) / original.name))
        number = iter(range(len(calls) * 2))

        def note(*_: str, at: int = at, number: Any = number, folder: Path = folder) -> None:
            if next(number) == at:
                thin_all(folder)

        assert report_on(folder, Store(note))[0] == before


# What is done to a thinned job, and what its report says.
LOST: dict[str, tuple[Callable[[Path], object], str]] = {
    "minutes": (lambda job: truncate(next(job.rglob("minutes-*"))), "minutes-0.* is damaged"),
    "all minutes": (lambda job: remove(*job.rglob("minutes-*")), "minutes-0.* is not there"),
    "findings": (lambda job: remove(job / "0/findings.json"), "are those of the whole steps alone"),
    "a letter of the findings": (
        lambda job: misspell(job / "0/findings.json"),
        "whole steps alone",
    ),
    "rows": (lambda job: remove(next(job.glob("nodes/node-1/*/part-steps-*"))), "is not there"),
}


@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_of_a_thinned_job_is_said(name: str, folder: Path) -> None:
    damage, sentence = LOST[name]
    thin_all(folder)
    damage(folder)
    report, notes = report_on(folder)
    assert re.search(sentence, notes)
    assert [each["ranks"] for each in report["episodes"]][:1] == [[1]]


def test_a_thinned_job_without_the_file_that_says_so_is_refused(folder: Path) -> None:
    thin_all(folder)
    (folder / "thinned.json").write_text("{")
    with pytest.raises(ValueError, match=r"thinned.json is left out: Input data was truncated"):
        read_source(str(folder), OPTIONS)


# What is done to one node of two, and why the job then stays as it is.
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "rows are cut off": (lambda node: truncate(next(node.glob("0/steps-*"))), "cut off"),
    "rows are gone": (lambda node: remove(next(node.glob("0/steps-*"))), "is not there"),
    "ranks are gone": (lambda node: remove(node / "0/ranks.parquet"), "is not there"),
    "the manifest is gone": (lambda node: remove(node / "manifest.json"), "no manifest"),
    "rows are wild": (
        lambda node: with_cells("seconds", -1.0, range(3))(next(node.glob("0/steps-*"))),
        "3 rows with values",
    ),
    "operations are cut off": (lambda node: truncate(next(node.glob("0/operations-*"))), "cut off"),
}
LEFT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a node is not done": (
        lambda node: edit(lambda part: part.update(is_complete=False))(node / "0/any"),
        "has a node that is not done",
    ),
    "there are pages": (
        lambda node: (
            shutil.copytree(node / "0", node.parents[1] / "0")
            / shutil.copy(node / "manifest.json", node.parents[1] / "0/rank-00009.page")
        ),
        "has pages that are not in columns",
    ),
    "it is young": (
        lambda node: append_event(
            node.parents[1], Event(kind="job_finished", job_id="made", attempt=0, time=LATER + 1)
        ),
        "is younger",
    ),
}


@pytest.mark.parametrize("name", [*REFUSED, *LEFT])
def test_a_job_that_is_damaged_or_not_over_stays_as_it_is(name: str, folder: Path) -> None:
    damage, words = {**REFUSED, **LEFT}[name]
    damage(folder / "nodes/node-1")
    before = files_of(folder)
    if name in REFUSED:
        with pytest.raises(ValueError, match=words):
            thin_all(folder)
    else:
        assert thin_all(folder).reason == words
    left = files_of(folder)
    assert {path: left[path] for path in before} == before
    assert "thinned.json" not in left


def test_a_store_that_fails_now_and_then_is_asked_again(original: Path, folder: Path) -> None:
    seen = set[tuple[str, str]]()

    def fail_once(kind: str, path: str) -> None:
        if (kind, path) not in seen:
            seen.add((kind, path))
            raise OSError(503, "slow down")

    thin_all(folder, Store(fail_once))
    assert {kind for kind, _ in seen} == {"cat_file", "ls", "makedirs", "open", "mv", "rm_file"}
    assert report_on(folder)[0] == report_on(original)[0]


def test_steps_that_are_too_many_for_a_report_are_judged_in_parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_reader, "_MAX_CELLS", LONG.ranks * 1000)
    before, notes = report_on(folder)
    assert [each["ranks"] for each in before["episodes"]] == []
    assert thin_all(folder).num_steps == LONG.steps
    assert {500, 699, 1299} <= {*rows_of(folder, "step")["step"].to_pylist()}
    after, later = report_on(folder)
    assert after == before
    assert notes in later


def test_an_attempt_that_ends_after_is_read_and_thinned_too(
    original: Path, folder: Path, memory: Path
) -> None:
    thin_all(folder)
    pack(write_pages(LONG, memory, attempt=1), folder.parent)
    before, _ = report_on(folder)
    assert before["attempt"] == 1
    assert thin_all(folder).num_steps == LONG.steps
    assert report_on(folder)[0] == before
    archive = JobArchive(fsspec.filesystem("file"), str(folder))
    of_first = published(read_archive(archive, replace(OPTIONS, attempt=0)))
    assert of_first["episodes"] == report_on(original)[0]["episodes"]


def test_the_command_says_what_it_does_and_does_it(original: Path, tmp_path: Path) -> None:
    for name in ("made", "other"):
        shutil.copytree(original, tmp_path / "jobs" / name)
    run, before = CliRunner().invoke, files_of(tmp_path)
    young = run(thin, [str(tmp_path), "--older-than", "30d"])
    assert young.exit_code == 1
    assert "left as it is: 1 that is younger" in young.output
    assert "other stays as it is: the manifest of node node-0 is left out" in young.output
    assert files_of(tmp_path) == before
    dry = run(thin, [str(tmp_path), "--older-than", "0s", "--dry-run"])
    assert files_of(tmp_path) == before
    shutil.rmtree(tmp_path / "jobs/other")
    result = run(thin, [str(tmp_path), "--older-than", "0s"])
    assert result.exit_code == 0
    assert re.search(r"made +2,400 +\d+ +2 +\d{3},\d{3} +\d{3},\d{3}", result.output)
    assert result.output in dry.output
    again = run(thin, [str(tmp_path), "--older-than", "0s"])
    assert again.output == "left as it is: 1 that is thinned\n"
    nothing = run(thin, [str(tmp_path / "jobs"), "--older-than", "0s"])
    assert nothing.exit_code == 2
    assert "has no jobs; give the URL of lockstep agent --archive" in nothing.output
