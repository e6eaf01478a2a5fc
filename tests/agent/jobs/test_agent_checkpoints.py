"""Checkpoints and restores of a job are counted once, however many ranks take part."""

from pathlib import Path

from lockstep_agent.collector import HistogramReading
from lockstep_agent.jobs.readings import checkpoint_readings
from lockstep_catalogue import training
from lockstep_records.page.reader import read_page

from ..live_page import LivePage

NODE = ("east", "job", "node-7")


def saves(page: LivePage, **by_outcome: int) -> LivePage:
    """A rank that has counted so many checkpoints by outcome."""
    for outcome, number in by_outcome.items():
        for _ in range(number):
            if outcome == "invalid":
                page.writer.periodic.count("checkpoints_invalid")
            else:
                page.writer.count_checkpoint(outcome)
    return page


def restores(page: LivePage, outcome: str, *, before: int, restored: int) -> LivePage:
    """A rank of an attempt after ``before`` steps that went on from ``restored``."""
    page.writer.periodic.count("restores", outcome)
    page.writer.periodic.know("step_before", before)
    page.writer.periodic.know("restored_step", restored)
    return page


def values(pages: list[LivePage]) -> dict[tuple[str, tuple[str, ...]], float]:
    for page in pages:
        page.commit()
        page.writer.periodic.commit(1)
    readings = checkpoint_readings(NODE, [read_page(page.path) for page in pages])
    return {
        (reading.metric.name, reading.labels[3:]): reading.sum
        if isinstance(reading, HistogramReading)
        else reading.value
        for reading in readings
    }


def outcomes(pages: list[LivePage]) -> tuple[float, ...]:
    read = values(pages)
    return tuple(read[training.CHECKPOINTS.name, (o,)] for o in ("ok", "failed", "invalid"))


def test_a_save_of_all_ranks_counts_once_and_so_does_one_of_a_single_rank(root: Path) -> None:
    pages = [saves(LivePage(root, rank=rank), ok=3, failed=1, invalid=2) for rank in range(3)]
    assert outcomes(pages) == (3, 1, 2)
    of_rank_0 = [
        saves(LivePage(root, rank=0, job_id="b"), ok=2),
        LivePage(root, rank=1, job_id="b"),
    ]
    assert outcomes(of_rank_0) == (2, 0, 0)


def test_a_save_that_one_rank_failed_is_no_good_one(root: Path) -> None:
    pages = [saves(LivePage(root, rank=0), ok=4), saves(LivePage(root, rank=1), ok=3, failed=1)]
    assert outcomes(pages) == (3, 1, 0)


def test_attempts_add_up_also_where_the_second_has_fewer_ranks(root: Path) -> None:
    pages = [saves(LivePage(root, rank=rank), ok=2) for rank in (0, 1)]
    pages.append(saves(LivePage(root, rank=0, attempt=1), ok=5))
    assert outcomes(pages) == (7, 0, 0)


def test_a_restore_counts_once_with_the_steps_that_it_lost(root: Path) -> None:
    pages = [
        restores(LivePage(root, rank=rank, attempt=1), "fallback", before=90, restored=40)
        for rank in (0, 1)
    ]
    pages += [
        restores(LivePage(root, rank=rank, attempt=2), "ok", before=90, restored=80)
        for rank in (0, 1)
    ]
    read = values(pages)
    assert read[training.RESTORES.name, ("fallback",)] == 1
    assert read[training.RESTORES.name, ("ok",)] == 1
    assert read[training.LOST_STEPS.name, ()] == 60


def test_durations_are_those_of_the_lowest_rank_that_writes(root: Path) -> None:
    reader, first, second = (LivePage(root, rank=rank) for rank in range(3))
    for page, seconds in ((first, 3.0), (second, 7.0)):
        saves(page, ok=1).writer.periodic.add("checkpoint_persisting_seconds", seconds)
    read = values([reader, second, first])
    assert read[training.CHECKPOINT_SECONDS.name, ("persisting",)] == 3.0
