"""Steps are found as the period of a rank's collectives."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_records.nccl.periods import Collective, find_period

from .collective_programs import EVALUATION, PROGRAMS, Step, ddp

LIMITS = settings(max_examples=60, deadline=None, derandomize=True)


def found_steps(sequence: Step) -> int:
    period = find_period(sequence)
    return 0 if period is None else len(period.starts)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_step_of_a_program_is_found(program: str) -> None:
    rng = random.Random(program)
    assert found_steps([c for _ in range(40) for c in PROGRAMS[program](rng)]) == 40


@pytest.mark.parametrize("program", ["buckets", "sharded, with a norm", "tensor and data"])
@pytest.mark.parametrize("every", [5, 10])
def test_a_warm_up_and_evaluations_are_no_steps(program: str, every: int) -> None:
    step = PROGRAMS[program](random.Random())
    warm_up = [Collective("world", "Broadcast", size) for size in range(200)]
    sequence = warm_up + (step * every + EVALUATION) * (40 // every)
    period = find_period(sequence)
    assert period is not None
    assert len(period.starts) == 40
    assert sum(period.is_usual) >= 39 - 40 // every


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("lost", [0.02, 0.05])
def test_dropped_records_cost_few_steps(program: str, lost: float) -> None:
    rng = random.Random(program)
    sequence = [c for _ in range(60) for c in PROGRAMS[program](rng) if rng.random() >= lost]
    assert found_steps(sequence) == pytest.approx(60, rel=0.1)


def test_a_gap_of_records_loses_the_steps_within_it_only() -> None:
    sequence = ddp() * 60
    assert found_steps(sequence[:510] + sequence[760:]) == pytest.approx(50, abs=1)


def test_a_step_begins_after_the_longest_gap() -> None:
    sequence = (ddp() * 20)[7:]
    gaps = [9.0 if each.size_bytes == ddp()[0].size_bytes else 1.0 for each in sequence]
    period = find_period(sequence, gaps)
    assert period is not None
    assert {sequence[start] for start in period.starts} == {ddp()[0]}


@pytest.mark.parametrize("sequence", [[], ddp(3), ddp() * 2], ids=["none", "three", "two steps"])
def test_too_few_repeats_are_no_period(sequence: Step) -> None:
    assert find_period(sequence) is None


KINDS = st.builds(
    Collective,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["AllReduce", "AllGather"]),
    st.integers(min_value=0, max_value=1 << 40),
)


@LIMITS
@given(motif=st.lists(KINDS, min_size=1, max_size=40, unique=True), repeats=st.integers(5, 30))
def test_any_motif_is_found_as_often_as_it_is_repeated(motif: Step, repeats: int) -> None:
    period = find_period(motif * repeats)
    assert period is not None
    assert len(period.starts) == repeats
    assert all(period.is_usual)


@LIMITS
@given(sequence=st.lists(KINDS, max_size=200))
def test_whatever_the_sequence_steps_are_parts_of_it_in_order(sequence: Step) -> None:
    period = find_period(sequence)
    if period is not None:
        assert list(period.starts) == sorted(set(period.starts))
        assert 0 <= period.starts[0] <= period.starts[-1] < len(sequence)
        assert len(period.is_usual) == len(period.starts) - 1
        assert 0 < period.explained_ratio <= 1 + 1e-9
