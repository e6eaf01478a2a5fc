"""Ranks of one launch share an attempt, and a job that is started again counts on."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import attempt_to_join, count_attempts, job_folder, page_path
from lockstep_records.page.writer import PageWriter, RankIdentity

FIRST, SECOND = 11, 12  # keys of two launches


class Pages:
    """Pages of one job on a node."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, job_folder(root, "job-a")
        self.writers: list[PageWriter] = []

    def attach(self, rank: int, launch_key: int) -> int:
        """A rank that attaches now; returns its attempt."""
        attempt = self.joined(rank, launch_key)
        path = page_path(self.root, "job-a", attempt, rank)
        identity = RankIdentity(
            job_id="job-a", rank=rank, world_size=8, attempt=attempt, launch_key=launch_key
        )
        self.writers.append(PageWriter(path, identity, rows=4))
        return attempt

    def joined(self, rank: int, launch_key: int) -> int:
        name = page_path(self.root, "job-a", 0, rank).name
        return attempt_to_join(self.folder, name, launch_key)

    def end(self) -> None:
        """All ranks are gone."""
        while self.writers:
            self.writers.pop().close()


@pytest.fixture(name="pages")
def _pages(memory: Path) -> Iterator[Pages]:
    pages = Pages(memory)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(pages.end)
        yield pages


def test_a_job_requeued_three_times_has_attempts_0_to_3(pages: Pages) -> None:
    for attempt in range(4):
        key = 100 + attempt
        assert [pages.attach(rank, key) for rank in (1, 0, 2)] == [attempt] * 3
        pages.end()
    assert count_attempts(pages.folder) == 4


def test_ranks_of_a_launch_share_its_attempt_though_the_first_has_ended(pages: Pages) -> None:
    assert pages.attach(0, FIRST) == 0
    pages.end()
    assert pages.attach(1, FIRST) == 0


def test_ranks_in_pods_of_their_own_join_those_that_run(pages: Pages) -> None:
    assert pages.attach(0, FIRST) == 0
    assert pages.attach(1, SECOND) == 0
    pages.end()
    # A larger world after a requeue: its newest rank had no page before.
    assert pages.attach(5, FIRST + 10) == 1
    assert pages.attach(0, FIRST + 20) == 1


def test_a_rank_that_runs_already_is_not_counted_on(pages: Pages) -> None:
    assert pages.attach(0, FIRST) == 0
    # Its page is there and held: creating it again fails, and says that the id is in use.
    assert pages.joined(0, SECOND) == 0


def test_attempts_that_left_no_pages_count_by_their_events(memory: Path) -> None:
    folder = job_folder(memory, "job-a")
    assert count_attempts(folder) == 0
    append_event(folder, Event(kind="attempt_started", job_id="job-a", attempt=4))
    assert count_attempts(folder) == 5


def test_a_rank_waits_for_the_page_that_another_of_its_launch_is_creating(pages: Pages) -> None:
    path = page_path(pages.root, "job-a", 0, 0)
    path.parent.mkdir(parents=True)
    identity = RankIdentity(job_id="job-a", rank=0, world_size=8, launch_key=FIRST)
    create = threading.Timer(0.2, lambda: pages.writers.append(PageWriter(path, identity, rows=4)))
    create.start()
    assert pages.joined(1, FIRST) == 0
    create.join()
