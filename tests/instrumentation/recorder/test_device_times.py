"""Steps are divided by the device's clock; who held up whom follows from when the host launched."""

from dataclasses import dataclass
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.recorder.device_times import DeviceTimes, StepDivider, StepEvents
from lockstep.recorder.phases import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER

MS = 1_000_000
COURSE = (OTHER, DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER)


@dataclass(frozen=True)
class Step:
    """Milliseconds of one step.

    Attributes:
        loader: that the host spends in the loader.
        backlog: of work that the stream still has when the loader begins.
        kernels: of forward, backward and optimizer.
    """

    loader: float
    backlog: float
    kernels: tuple[float, float, float]


def divided(divider: StepDivider, step: Step) -> DeviceTimes:
    """The step, on a stream that goes through its backlog while the host is in the loader."""
    exposed = max(0.0, step.loader - step.backlog)
    spans = [step.backlog * MS, exposed * MS, *(span * MS for span in step.kernels)]
    begin = 1e12
    in_loader = begin  # the host comes to the loader while the stream has all of its backlog
    after = in_loader + step.loader * MS
    host_ns = [int(begin), int(in_loader), *(int(after) + number * 1000 for number in range(4))]
    positions = [*accumulate(spans, initial=0.0)]
    marks = [0, 0, 1 if exposed else 0, 0, 0, 0]
    return divider.divide(StepEvents(COURSE, marks, host_ns, spans, positions, begin))


durations = st.floats(0.1, 50.0)
kernels = st.tuples(durations, durations, durations)


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(0.0, 1.0), durations, kernels), min_size=1, max_size=12),
)
def test_a_loader_that_is_hidden_behind_the_device_costs_the_rank_nothing(
    steps: list[tuple[float, float, tuple[float, float, float]]],
) -> None:
    divider = StepDivider()
    for share, backlog, spans in steps:
        times = divided(divider, Step(share * backlog, backlog, spans))
        assert times.seconds[DATA] == 0
        assert sum(times.idle) == 0
        assert times.total == pytest.approx((backlog + sum(spans)) / 1e3)


@settings(max_examples=200, deadline=None)
@given(backlog=durations, beyond=durations, spans=kernels)
def test_of_a_slow_loader_only_what_the_device_waited_for_counts(
    backlog: float, beyond: float, spans: tuple[float, float, float]
) -> None:
    times = divided(StepDivider(), Step(backlog + beyond, backlog, spans))
    assert times.seconds[DATA] == pytest.approx(beyond / 1e3)
    assert times.idle[DATA] == pytest.approx(beyond / 1e3, abs=1e-6)
    assert times.idle[FORWARD] == times.idle[BACKWARD] == 0
