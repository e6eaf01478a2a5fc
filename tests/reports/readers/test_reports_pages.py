"""Real pages, written by the page writer, as the report's reader sees them."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import CANDIDATE_ROOTS, page_path
from lockstep_records.page.layout import IDENTITY
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.jobs_command import read
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.readers.pages import NoStepsError, read_pages

from ..synthetic_job import Slow, SyntheticJob


@pytest.fixture(name="root")
def _root() -> Iterator[Path]:
    """A folder on the tmpfs that pages need."""
    with tempfile.TemporaryDirectory(dir=CANDIDATE_ROOTS[-1].parent) as folder:
        yield Path(folder)


def test_pages_give_back_what_was_written(root: Path) -> None:
    job = SyntheticJob(ranks=3, nodes=3, num_steps=60, slow=(Slow(rank=1, from_step=20),))
    read, true = read_pages(job.write(root) / "0")[0], job.steps()
    assert read.ranks == (0, 1, 2)
    assert read.nodes == ("node-0", "node-1", "node-2")
    np.testing.assert_array_equal(read.numbers, true.numbers)
    for phase in STEP_PHASES:
        np.testing.assert_allclose(read.phases[phase], true.phases[phase], rtol=1e-6)
    np.testing.assert_allclose(read.last_arrival, true.last_arrival, atol=0.01)
    np.testing.assert_allclose(np.diff(read.last_arrival), np.diff(true.last_arrival), atol=1e-6)
    np.testing.assert_allclose(read.loss, 2.5)


def test_ranks_are_aligned_by_step_number_and_gaps_are_unknown(root: Path) -> None:
    job = SyntheticJob(ranks=2, num_steps=50)
    folder = job.write(root, skip=(1,))
    late = SyntheticJob(ranks=2, num_steps=30)
    late.write(root, skip=(0,))
    steps = read_pages(folder / "0")[0]
    assert steps.seconds.shape == (2, 50)
    assert not np.isnan(steps.seconds[0]).any()
    assert np.isnan(steps.seconds[1, 30:]).all()


def test_only_the_newest_steps_are_kept_when_there_are_too_many(root: Path) -> None:
    steps = read_pages(SyntheticJob(ranks=2, num_steps=50).write(root) / "0", max_cells=40)[0]
    assert list(steps.numbers) == list(range(30, 50))
    assert steps.notes == ("Only the newest 20 of 50 steps are judged.",)


def test_a_damaged_page_is_told_and_the_rest_goes_on(root: Path) -> None:
    folder = SyntheticJob(ranks=3, num_steps=50).write(root)
    damaged = page_path(root, "synthetic", 0, 1)
    with damaged.open("r+b") as file:
        file.truncate(20_000)
    steps = read_pages(folder / "0")[0]
    assert steps.missing_ranks == (1,)
    assert "rank-00001.page" in steps.notes[0]


def test_pages_of_different_worlds_are_refused(root: Path) -> None:
    folder = SyntheticJob(ranks=2, num_steps=5).write(root)
    SyntheticJob(ranks=4, num_steps=5).write(root, skip=(0, 1))
    with pytest.raises(NoStepsError, match=r"world_size differs inside one attempt: 2 in .* 4 in"):
        read_pages(folder / "0")[0]


def test_an_attempt_without_a_readable_page_is_refused(root: Path) -> None:
    folder = SyntheticJob(ranks=1, num_steps=5).write(root)
    page_path(root, "synthetic", 0, 0).write_bytes(b"nonsense")
    with pytest.raises(NoStepsError, match="its identity alone takes"):
        read_pages(folder / "0")[0]


def test_rows_that_cannot_be_true_are_left_out(root: Path) -> None:
    path = page_path(root, "wild", 0, 0)
    path.parent.mkdir(parents=True)
    page = PageWriter(path, RankIdentity(job_id="wild", rank=0, world_size=1), rows=8)
    wild = (float("nan"), float("inf"), -1.0, 1e30, 0.5)
    for step, seconds in enumerate(wild):
        phases = [float("nan"), *[-0.1] * (len(STEP_PHASES) - 1)]
        page.append(
            step=step,
            start_ns=2**62,
            seconds=seconds,
            phase_seconds=phases,
            first_arrival_ns=-(2**62),
            last_arrival_ns=2**62,
        )
    page.commit(0)
    page.close()
    steps = read_pages(path.parent)[0]
    assert list(steps.numbers) == [4]
    assert np.isnan(steps.start).all()
    assert all(np.isnan(values).all() for values in steps.phases.values())


def test_the_newest_attempt_with_steps_is_read_and_the_others_told(root: Path) -> None:
    for attempt, num_steps in ((0, 50), (1, 60)):
        SyntheticJob(ranks=2, num_steps=num_steps, attempt=attempt).write(root)
    job = root / "jobs" / "synthetic"
    (job / "2").mkdir()
    for attempt in (0, 1):
        append_event(job, Event(kind="attempt_started", job_id="synthetic", attempt=attempt))
    ended = Event(
        kind="attempt_ended", job_id="synthetic", attempt=1, fields={"outcome": "succeeded"}
    )
    append_event(job, ended)
    recording = read(job, ReadOptions())
    assert recording.steps.attempt == 1
    assert [(a.number, a.outcome) for a in recording.attempts] == [
        (0, "failed"),
        (1, "succeeded"),
        (2, None),
    ]
    assert read(job, ReadOptions(attempt=0)).steps.attempt == 0
    with pytest.raises(ValueError, match=r"attempt 7 is not in .*; attempts there: 0, 1, 2"):
        read(job, ReadOptions(attempt=7))
    shutil.rmtree(job / "0")
    shutil.rmtree(job / "1")
    with pytest.raises(NoStepsError, match="no page of attempt"):
        read(job, ReadOptions())


def test_a_page_given_for_a_job_is_refused_by_its_version_else_for_its_folder(root: Path) -> None:
    page = SyntheticJob(ranks=1, num_steps=5).write(root) / "0" / "rank-00000.page"
    with pytest.raises(ValueError, match="page of one rank"):
        read_source(str(page), ReadOptions())
    with page.open("r+b") as file:
        file.seek(IDENTITY.offsets["version"])
        file.write(b"\x09")
    with pytest.raises(ValueError, match="version 9"):
        read_source(str(page), ReadOptions())
