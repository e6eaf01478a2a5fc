"""The three series more of a rank that shares parameters now and then."""

import time
from pathlib import Path

import pytest

from lockstep_catalogue import training

from ..live_page import LivePage
from .test_agent_ranks import JOB, RanksFixture


def test_a_rank_that_trains_asynchronously_has_three_series_more_over_all_its_attempts(
    root: Path,
) -> None:
    rank = (*JOB, "3")
    for attempt, (rounds, independent) in enumerate(((7, 7), (5, 4))):
        page = LivePage(root, rank=3, attempt=attempt)
        for name, value in {
            "sync_rounds": rounds,
            "independent_rounds": independent,
            "staleness_steps": 2 + attempt,
            "synced_ns": time.monotonic_ns(),
        }.items():
            page.writer.periodic.know(name, value)
        page.writer.periodic.commit(1)
    values = RanksFixture(root).values()
    of_rank = [labels for metric, labels in values if metric in training.ASYNCHRONOUS_RANK_METRICS]
    # One of them twice: this rank has joined a round too.
    assert len(of_rank) == 4
    assert values[training.SYNC_ROUNDS, (*rank, "independent")] == 11
    assert values[training.SYNC_ROUNDS, (*rank, "round")] == 1
    assert values[training.STALENESS, rank] == 3
    assert values[training.LAST_SYNC, rank] == pytest.approx(time.time(), abs=5)


def test_a_synchronous_rank_has_none_of_them(root: Path) -> None:
    LivePage(root, rank=3).step(1)
    metrics = {metric for metric, _ in RanksFixture(root).values()}
    assert not metrics & {*training.ASYNCHRONOUS_RANK_METRICS}
