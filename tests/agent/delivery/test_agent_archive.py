"""Pages and events of jobs on their way to the archive."""

import os
from pathlib import Path

import fsspec

from lockstep_agent.delivery.archive import Copier
from lockstep_catalogue import agent
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.job_status import archived_jobs
from lockstep_records.page.reader import read_page

from ..live_page import LivePage


def add_event(root: Path, kind: str) -> None:
    append_event(root / "jobs" / "job", Event(kind=kind, job_id="job", attempt=0))


def test_a_reader_of_the_archive_sees_the_complete_old_page_during_a_copy(
    root: Path, tmp_path: Path
) -> None:
    now, page = [0.0], LivePage(root)
    copier = Copier(root, fsspec.filesystem("file"), str(tmp_path), clock=lambda: now[0])
    page.step(1)
    copier.copy()
    [copy] = tmp_path.rglob("*.page")
    before = copy.read_bytes()
    with copy.open("rb") as reading:
        page.step(2)
        now[0] += 301
        copier.copy()
        assert reading.read() == before
    assert copier.counts == {"copied": 2, "failed": 0}
    assert read_page(copy).state["steps"] == 2
    assert [path for path in (tmp_path / "jobs").rglob("*") if path.is_file()] == [copy]


def test_a_job_is_noted_as_archived_when_it_has_ended_and_every_file_is_copied(root: Path) -> None:
    files = fsspec.filesystem("memory")
    copier = Copier(root, files, "/noted")
    page = LivePage(root)
    page.step(1)
    add_event(root, "job_started")
    copier.copy()
    assert archived_jobs(root) == frozenset()
    add_event(root, "job_finished")
    copier.copy()
    assert archived_jobs(root) == frozenset({"job"})


def test_the_archive_copies_ended_pages_once_and_running_ones_every_five_minutes(
    root: Path,
) -> None:
    files = fsspec.filesystem("memory")
    now = [0.0]
    copier = Copier(root, files, "/archive", clock=lambda: now[0])
    running, ended = LivePage(root), LivePage(root, rank=1)
    for page in (running, ended):
        page.step(1)
    ended.phase("done")
    add_event(root, "job_started")
    copier.copy()
    assert copier.counts == {"copied": 3, "failed": 0}
    running.step(2)
    copier.copy()
    assert copier.counts["copied"] == 3
    now[0] += 301
    copier.copy()
    assert copier.counts["copied"] == 4
    body = files.cat_file("/archive/jobs/job/0/rank-00000.page")
    assert body == running.path.read_bytes()

    class Full:
        protocol = "file"

        def cat_file(self, _: str) -> bytes:
            return str(os.getuid()).encode()

        def makedirs(self, *_: object, **__: object) -> None:
            raise OSError(28, "no space")

    full = Copier(root, Full(), "/archive", clock=lambda: now[0])
    full.copy()
    full.copy()
    assert full.counts == {"copied": 0, "failed": 6}
    assert agent.ARCHIVED_FILES.labels[0].values == ("copied", "failed")


def write_rows(page: LivePage, first: int, count: int) -> None:
    for number in range(first, first + count):
        page.row(number, seconds=1.0)
        page.writer.count_step(number, 1.0, tokens=1, samples=1)
        page.commit()


def test_finished_stretches_become_columns_while_a_job_runs_and_replace_its_pages_at_its_end(
    root: Path,
) -> None:
    files = fsspec.filesystem("memory")
    copier = Copier(root, files, "/columns", packs=True)
    pages = [LivePage(root, rank=rank) for rank in (0, 1)]
    add_event(root, "job_started")
    for page in pages:
        write_rows(page, 0, 11)
    copier.copy()
    folder = "/columns/jobs/job/nodes/written-by-the-rank"
    live = {"0/rank-00000.page", "0/rank-00001.page", "events.jsonl"}
    stretch = "nodes/written-by-the-rank/0/steps-000000000000.parquet"
    first = {path.removeprefix("/columns/jobs/job/") for path in files.find("/columns/jobs")}
    ranks = stretch.replace("steps-000000000000", "ranks")
    assert first == live | {stretch, ranks, "nodes/written-by-the-rank/manifest.json"}
    before = files.cat_file(f"/columns/jobs/job/{stretch}")
    for page in pages:
        write_rows(page, 11, 4)
        page.phase("done")
    add_event(root, "job_finished")
    # The child was killed before it wrote the manifest: the next one writes the same file.
    files.rm_file(f"{folder}/manifest.json")
    copier = Copier(root, files, "/columns", packs=True)
    copier.copy()
    assert archived_jobs(root) == frozenset({"job"})
    names = sorted(path.removeprefix(f"{folder}/") for path in files.find("/columns/jobs"))
    assert [name for name in names if name.endswith("parquet")] == [
        "0/ranks.parquet",
        "0/steps-000000000000.parquet",
        "0/steps-000000000008.parquet",
    ]
    assert not [name for name in names if name.endswith(".page")]
    assert files.cat_file(f"/columns/jobs/job/{stretch}") == before
