import pytest

from lockstep_records.page.replicas import counts_data
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import Layout
from lockstep_trainer.parallel import STRATEGIES, layout_of


def test_a_layout_that_does_not_multiply_to_the_world_prints_every_degree_and_the_remedy() -> None:
    with pytest.raises(ValueError, match="world") as refused:
        Layout(world_size=8, dp=2, tp=2)
    assert str(refused.value) == (
        "--pp 1 x --dp 2 x --fsdp 1 x --ep 1 x --tp 2 makes 4 ranks and the world has 8; "
        "give --dp 4 or start 4 ranks"
    )
    with pytest.raises(ValueError, match="; start 9 ranks"):
        Layout(world_size=8, dp=3, tp=3)


def test_the_axis_of_a_strategy_takes_what_the_others_leave() -> None:
    for name, strategy in STRATEGIES.items():
        assert layout_of(TrainConfig(strategy=name), 4).axes == {strategy.axes[0]: 4}
    halved = layout_of(TrainConfig(strategy="fsdp2", dp=2), 4)
    assert halved.axes == {"dp": 2, "fsdp": 2}
    hybrid = layout_of(TrainConfig(strategy="hybrid", pp=2, tp=2), 8)
    assert hybrid.axes == {"pp": 2, "dp": 2, "tp": 2}


def test_tensor_parallel_ranks_are_neighbours_and_see_the_same_samples() -> None:
    layout = Layout(world_size=8, pp=2, dp=2, tp=2)
    assert layout.coordinates(5) == {"pp": 1, "dp": 0, "tp": 1}
    assert [layout.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert layout.data_ranks == 2
    assert [rank for rank in range(8) if counts_data(layout.coordinates(rank))] == [0, 2]


@pytest.mark.parametrize("degrees", [(1, 4, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2)])
def test_each_part_of_the_data_is_counted_by_one_rank(degrees: tuple[int, int, int]) -> None:
    pp, dp, tp = degrees
    layout = Layout(world_size=pp * dp * tp, pp=pp, dp=dp, tp=tp)
    counting = [rank for rank in range(layout.world_size) if counts_data(layout.coordinates(rank))]
    assert sorted(map(layout.data_rank, counting)) == list(range(layout.data_ranks))


def test_expert_and_sharded_data_parallel_ranks_see_different_samples() -> None:
    for layout in (Layout(world_size=4, dp=2, ep=2), Layout(world_size=4, dp=2, fsdp=2)):
        assert [layout.data_rank(rank) for rank in range(4)] == [0, 1, 2, 3]


def test_a_single_rank_is_on_the_data_axis() -> None:
    assert Layout(world_size=1).coordinates(0) == {"dp": 0}
