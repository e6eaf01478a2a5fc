"""Bus bandwidth is that of nccl-tests."""

import pytest

from lockstep.recorder.plain import bus_factor
from lockstep_catalogue.labels import KIND


def test_an_all_reduce_of_eight_ranks_has_the_bus_bandwidth_that_nccl_tests_prints() -> None:
    # nccl-tests on 8 x A100, superbenchmark's tests/data: algbw and busbw in GB/s.
    assert 37.44 * bus_factor("all_reduce", 8) == pytest.approx(65.52, abs=0.005)
    assert 115.49 * bus_factor("all_reduce", 8) == pytest.approx(202.11, abs=0.01)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1.0),
        ("send_recv", 1.0),
        ("all_reduce", 1.5),
    ],
)
def test_each_kind_has_its_factor_in_a_group_of_four(kind: str, factor: float) -> None:
    assert bus_factor(kind, 4) == factor


@pytest.mark.parametrize("kind", KIND.values)
def test_one_rank_alone_puts_nothing_on_the_bus(kind: str) -> None:
    assert bus_factor(kind, 1) == 0.0


def test_a_kind_or_a_group_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="kind 'barrier'"):
        bus_factor("barrier", 4)
    with pytest.raises(ValueError, match="ranks 0"):
        bus_factor("all_reduce", 0)
