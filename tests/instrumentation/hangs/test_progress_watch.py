"""A rank that stands says whether its device has work left, from a thread beside the loop."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.guard import Parts
from lockstep.hangs.rank_watch import ProgressWatch
from lockstep_outcomes.progress.hangs import HangTimeouts, find_hang, read_progress
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.reader import Page, read_page
from lockstep_records.page.writer import PageWriter, RankIdentity

LIMIT_SECONDS = 100.0


@pytest.fixture(name="writers")
def _writers(memory: Path) -> Iterator[list[PageWriter]]:
    """Two ranks that stand in forward of the same step."""
    writers = []
    for rank in range(2):
        identity = RankIdentity(job_id="job", rank=rank, world_size=2)
        writer = PageWriter(page_path(memory, "job", 0, rank), identity, rows=4)
        writer.signed[SLOT.word("step")] = 7
        writer.words[SLOT.word("present")] |= SLOT.presence["step"]
        writer.heartbeat(time.monotonic_ns(), PHASES.index("forward"))
        writer.commit(time.monotonic_ns())
        writers.append(writer)
    yield writers
    for writer in writers:
        writer.close()


def poll(page: Page, idle_seconds: float, *, is_done: bool) -> bool:
    watch = ProgressWatch(page.path, lambda: LIMIT_SECONDS, lambda: not is_done, Parts())
    try:
        return watch.poll(page.progress_ns + round(idle_seconds * 1e9))
    finally:
        watch.stop()


def test_the_rank_whose_device_has_nothing_left_is_missing_live(writers: list[PageWriter]) -> None:
    pages = [read_page(writer.path) for writer in writers]
    for page in pages:
        assert poll(page, LIMIT_SECONDS, is_done=page.identity["rank"] == 1)
    late_ns = pages[0].progress_ns + 10**12
    hang = find_hang(pages, late_ns, HangTimeouts(step_seconds=LIMIT_SECONDS))
    assert hang is not None
    assert (hang.missing.ranks, hang.missing.kind) == ((1,), "host")
    assert "nothing left on its device" in hang.missing.why


def test_a_rank_that_moves_is_not_asked_and_what_was_found_before_is_forgotten(
    writers: list[PageWriter],
) -> None:
    page = read_page(writers[0].path)
    assert not poll(page, LIMIT_SECONDS / 3, is_done=False)
    assert read_progress(page).device is None
    assert poll(page, LIMIT_SECONDS, is_done=False)
    assert read_progress(page).device == "pending"
    writers[0].heartbeat(time.monotonic_ns(), PHASES.index("backward"))
    assert read_progress(read_page(page.path)).device is None
