import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the name that every reader of torch code knows

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.model.gpt import GPT, Mixture
from lockstep_trainer.optimizer import learning_rate_at


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(layers=2, width=32, heads=4, sequence=24)


def test_a_byte_is_predicted_only_from_the_bytes_before_it(model: GPT) -> None:
    x = torch.randint(256, (2, 24))
    changed = x.clone()
    changed[:, 15:] = (changed[:, 15:] + 1) % 256
    before, after = model.logits(x), model.logits(changed)
    torch.testing.assert_close(before[:, :15], after[:, :15])
    assert not torch.allclose(before[:, 15:], after[:, 15:])


def test_the_learning_rate_warms_up_and_ends_at_a_tenth() -> None:
    config = TrainConfig(steps=100, warmup=10, learning_rate=1.0)
    assert learning_rate_at(1, config) == pytest.approx(0.1)
    assert learning_rate_at(10, config) == pytest.approx(1.0)
    assert learning_rate_at(100, config) == pytest.approx(0.1)
    rates = [learning_rate_at(step, config) for step in range(10, 101)]
    assert rates == sorted(rates, reverse=True)


def test_the_flops_of_a_byte_are_those_of_its_weights_and_of_attention() -> None:
    matrices = 2 * 12 * 32 * 32 + 256 * 32
    norms = 5 * 2 * 32
    attention = 12 * 2 * 32 * 24
    dense = GPT(layers=2, width=32, heads=4, sequence=24)
    assert dense.flops_per_token(24) == 6 * (matrices + norms) + attention
    experts = GPT(layers=2, width=32, heads=4, sequence=24, experts=4)
    router_and_second_expert = 2 * (4 * 32 + 8 * 32 * 32)
    assert experts.flops_per_token(24) == dense.flops_per_token(24) + 6 * router_and_second_expert


def test_a_mixture_of_equal_experts_is_one_expert_weighted_by_its_probabilities() -> None:
    torch.manual_seed(0)
    mixture = Mixture(8, 4)
    for parameter in mixture.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        for stacked in (mixture.experts.up, mixture.experts.down):
            stacked.copy_(stacked[:1].expand_as(stacked))
    x = torch.randn(2, 5, 8)
    expert_output = F.gelu(x @ mixture.experts.up[0]) @ mixture.experts.down[0]
    weight = mixture.router(x).softmax(dim=-1).topk(2).values.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(mixture(x), expert_output * weight)


def test_experts_that_get_all_the_bytes_are_as_unbalanced_as_can_be() -> None:
    mixture = Mixture(8, 4)
    for parameter in mixture.parameters():
        torch.nn.init.zeros_(parameter)
    mixture(torch.randn(2, 5, 8))
    assert mixture.imbalance.item() == pytest.approx(1.0)
    with torch.no_grad():
        mixture.router.weight[:2] = 100.0
    mixture(torch.ones(2, 5, 8))
    assert mixture.imbalance.item() == pytest.approx(4 / 2)
