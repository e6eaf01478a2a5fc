import math

import pytest
import torch

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.model import GPT
from lockstep_trainer.train import learning_rate_at


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(layers=2, width=32, heads=4, sequence=24)


def test_a_byte_is_predicted_from_the_bytes_before_it_alone(model: GPT) -> None:
    x = torch.randint(256, (2, 24))
    changed = x.clone()
    changed[:, 15:] = (changed[:, 15:] + 1) % 256
    before, after = model.logits(x), model.logits(changed)
    torch.testing.assert_close(before[:, :15], after[:, :15])
    assert not torch.allclose(before[:, 15:], after[:, 15:])


def test_an_untrained_model_knows_nothing(model: GPT) -> None:
    x = torch.randint(256, (4, 24))
    loss = model(x, x.roll(-1, 1))
    assert loss.shape == ()
    assert loss.item() == pytest.approx(math.log(256), abs=0.3)


def test_every_parameter_gets_a_gradient(model: GPT) -> None:
    x = torch.randint(256, (4, 24))
    model(x, x.roll(-1, 1)).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_a_shorter_input_is_taken(model: GPT) -> None:
    assert model.logits(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 5, 256)


def test_the_learning_rate_warms_up_and_ends_at_a_tenth() -> None:
    config = TrainConfig(steps=100, warmup=10, learning_rate=1.0)
    assert learning_rate_at(1, config) == pytest.approx(0.1)
    assert learning_rate_at(10, config) == pytest.approx(1.0)
    assert learning_rate_at(100, config) == pytest.approx(0.1)
    told = [learning_rate_at(step, config) for step in range(10, 101)]
    assert told == sorted(told, reverse=True)
