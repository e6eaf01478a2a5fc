"""Signs on the nodes of slow ranks: what counts, and when one proves a cause."""

import pytest

from lockstep_reports.analysis.signs import Span, Spans, activity, is_proof
from lockstep_reports.readers.node_series import SERIES, Trouble
from lockstep_reports.recording.recording import Points

EPISODE, RECORDED = Span(1000.0, 2000.0), Span(0.0, 3000.0)
SPANS = Spans(EPISODE, RECORDED, 70.0)


def series(*active: tuple[float, float], value: float = 0.5) -> Points:
    return [
        (float(at), value if any(begin <= at <= end for begin, end in active) else 0.0)
        for at in range(0, 3001, 10)
    ]


def test_a_sign_is_what_lies_above_its_limit_in_the_window() -> None:
    points = series((1200, 1400))
    assert activity(points, 0.1, EPISODE) == (Span(1200.0, 1400.0), 0.5)
    assert activity(points, 0.6, EPISODE) is None
    assert activity(points, 0.1, Span(1500.0, 1600.0)) is None


@pytest.mark.parametrize(
    ("points", "others", "proven"),
    [
        (series((1010, 2050)), series(), True),
        (series((1010, 2050)), series((1010, 2050)), False),  # the other node has it too
        (series((0, 3000)), series(), False),  # it was there all the time
        (series((1010, 1500)), series(), False),  # the slowness outlasts it
        (series((1500, 2010)), series(), False),  # the slowness came first
        (series((1000, 1020), (1990, 2000)), series(), False),  # the ends alone
        (series(), series(), False),
    ],
)
def test_only_a_sign_that_begins_and_ends_with_the_slowness_on_that_node_is_proof(
    points: Points, others: Points, *, proven: bool
) -> None:
    assert is_proof({"a": points, "b": others}, "a", 0.1, SPANS) is proven


def test_an_episode_that_fills_the_recording_proves_nothing() -> None:
    points = {"a": series((0, 3000)), "b": series()}
    assert not is_proof(points, "a", 0.1, Spans(RECORDED, RECORDED, 70.0))


@pytest.mark.parametrize("row", SERIES, ids=lambda row: row.cause)
def test_every_series_is_asked_for_by_node(row: Trouble) -> None:
    query = row.query(("n0", "n1"), "60s")
    assert 'node=~"n0|n1"' in query
    assert "by (node" in query
