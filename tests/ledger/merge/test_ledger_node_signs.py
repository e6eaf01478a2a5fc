"""Incidents of a node, as evidence of how a job ended; and what failures cost in time."""

from dataclasses import asdict

import pytest
from sqlalchemy import select

from lockstep_ledger.merge.record import Record, expectation, interruptions_of, last_hour_ettr
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.queries import job_document
from lockstep_ledger.store.tables import jobs
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter

from ..stories import Story, checked
from .replay import Replay


@pytest.mark.parametrize(
    ("sign", "seconds", "cause", "failure_class", "expected"),
    [
        ("xid", 7200.0, "peer_failure", "unknown", "peer_failure"),  # survived for two hours
        ("xid", 60.0, "exception", "user", "exception"),  # the end names its cause
        ("made_up", 60.0, "peer_failure", "unknown", "peer_failure"),
        ("ib_error", 60.0, "collective_timeout", "unknown", "ib_error"),
    ],
)
def test_the_end_stands_where_trouble_of_a_node_explains_nothing(
    sign: str, seconds: float, cause: str, failure_class: str, expected: str
) -> None:
    story = Story().start("n1").add("node_event", "n1", sign=sign, detail="mlx5_0 went down")
    story.after(seconds).end("failed", "n1", failure_class=failure_class, cause=cause)
    replay = Replay(story)
    assert replay.job.cause == expected
    assert replay.apply(Story(now=story.now).add("node_event", sign="xid")).refused == []


def test_expected_time_follows_from_the_failures_and_checkpoints_of_a_job() -> None:
    """Two nodes of 8 GPUs for a day, one failure, 24 checkpoints of 30 s, starts of 600 s."""
    day, gpus = 86_400.0, 16.0
    job = Record("east", "j", 1, None, ["j"], gpus=gpus, expected_nodes=2, attempts=2)
    job.checkpoints, job.outcome = 24, "succeeded"
    seconds = {"startup": 1200.0, "checkpoint": 720.0, "productive": day - 1920.0}
    job.goodput = {state: value * gpus for state, value in seconds.items()}
    expected = expectation(interruptions_of(job))
    assert expected.failures_per_node_day == pytest.approx(0.5)
    assert (expected.restart_seconds, expected.save_seconds) == (600.0, 30.0)
    assert expected.interval_seconds == pytest.approx((day - 1920) / 24)
    interval = (day - 1920) / 24
    by_hand = (1 - 2 * 0.5 / day * (600 + interval / 2)) / (1 + 30 / interval)
    assert expected.expected_ettr_ratio == pytest.approx(by_hand)
    assert expected.best_interval_seconds == pytest.approx((2 * 30 * day) ** 0.5)
    assert expected.best_ettr_ratio is not None
    assert expected.best_ettr_ratio > by_hand


def test_without_reports_nothing_is_expected() -> None:
    record = Record("east", "j", 1, None, ["j"])
    assert set(asdict(expectation(interruptions_of(record))).values()) == {None}
    assert last_hour_ettr([]) is None


def test_the_last_hour_of_many_nodes_shows_an_incident_that_all_the_time_hides() -> None:
    """Its reports are more than a timeline holds."""
    story = Story()
    for node in (nodes := [f"n{number}" for number in range(30)]):
        story.start(node)
    for minute in range(1, 181):
        story.after(60)
        seconds = {"productive": 60.0 * min(minute, 150), "hang": 60.0 * max(0, minute - 150)}
        for node in nodes:
            story.add("goodput", node, rank_seconds=seconds, num_ranks=1, num_gpus=1)
    engine = open_store("sqlite:///:memory:")
    writer = StoreWriter(engine, clock=lambda: story.now)
    for first in range(0, len(story.events), 1000):
        some = Story(events=story.events[first : first + 1000], now=story.now)
        writer.write([Submission(checked(some))])
    with engine.connect() as connection:
        document = job_document(connection, connection.execute(select(jobs)).one())
    assert document["num_events"] > len(document["timeline"])
    assert document["last_hour_ettr_ratio"] == pytest.approx(0.5)
    assert document["ettr_ratio"] == pytest.approx(150 / 180)
