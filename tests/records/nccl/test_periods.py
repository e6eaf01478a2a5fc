"""Steps are found as the period of a rank's collectives."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_records.nccl.periods import Collective, find_period

MIB = 1 << 20
NORM = Collective("world", "AllReduce", 4)
EVALUATION = [Collective("dp", "Broadcast", 512)] * 30 + [Collective("dp", "AllReduce", 8)]
LIMITS = settings(max_examples=60, deadline=None, derandomize=True)
Step = list[Collective]


def ddp(buckets: int = 25, communicator: str = "dp") -> Step:
    return [
        Collective(communicator, "AllReduce", 25 * MIB + bucket * 4096) for bucket in range(buckets)
    ]


def fsdp(layers: int = 24) -> Step:
    gather, scatter = (Collective("dp", name, 4 * MIB) for name in ("AllGather", "ReduceScatter"))
    return [gather] * (layers + 1) + ([scatter, gather] * layers)[:-1]


def tensor_parallel(layers: int = 24, size: int = 64 * MIB) -> Step:
    return [Collective("tp", "AllReduce", size)] * (4 * layers)


def pipeline(micro_batches: int = 12) -> Step:
    send, receive = (Collective("pp", name, MIB) for name in ("Send", "Recv"))
    return [send] * 4 + [receive, send] * micro_batches + [receive] * 4 + ddp(3)


def varying_micro_batches(rng: random.Random) -> Step:
    return tensor_parallel() * rng.randint(3, 9) + ddp(8)


def varying_sizes(rng: random.Random) -> Step:
    return tensor_parallel(size=4096 * rng.randint(100, 4000)) + ddp(8)


def experts(rng: random.Random) -> Step:
    exchanges = (Collective("ep", "AllToAll", 4096 * rng.randint(1, 8)) for _ in range(24))
    return [each for exchange in exchanges for each in (exchange, ddp(1)[0])] + ddp(3, "edp")


def interleaved(rng: random.Random) -> Step:
    step, parts = [], [ddp(10), fsdp(8), tensor_parallel(2)]
    while parts := [part for part in parts if part]:
        step.append(rng.choice(parts).pop(0))
    return step


PROGRAMS: dict[str, Callable[[random.Random], Step]] = {
    "one all-reduce": lambda _: ddp(1),
    "buckets": lambda _: ddp(),
    "buckets of one size": lambda _: [ddp(1)[0]] * 40 + [Collective("dp", "AllReduce", MIB)],
    "sharded": lambda _: fsdp(),
    "sharded, 80 layers": lambda _: fsdp(80),
    "sharded, with a norm": lambda _: [*fsdp(), NORM],
    "sharded, 4 micro-batches": lambda _: [*(fsdp() * 4), NORM],
    "sharded, 16 micro-batches": lambda _: [*(fsdp(8) * 16), NORM],
    "tensor and data": lambda _: tensor_parallel() * 8 + ddp(8),
    "pipeline": lambda _: pipeline(),
    "varying micro-batches": varying_micro_batches,
    "varying sizes": varying_sizes,
    "experts": experts,
    "interleaved": interleaved,
}


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
