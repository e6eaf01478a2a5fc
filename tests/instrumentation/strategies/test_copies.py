"""Copies of a watched model or optimizer, such as averaged weights: they are not watched."""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from .watched import page_in, watched

pytestmark = [
    pytest.mark.usefixtures("single_rank_group"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),  # torch's own, on import
]
SETTLED_STEPS = 10


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def saved_and_loaded(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(2, 8)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded, AveragedModel])
@pytest.mark.parametrize("wrapped", [lambda model: model, DistributedDataParallel, compiled])
@pytest.mark.parametrize("steps", [0, SETTLED_STEPS])
def test_a_copy_of_a_watched_model_works_and_enters_no_phase(
    root: Path,
    steps: int,
    wrapped: Callable[[nn.Module], nn.Module],
    copied: Callable[[nn.Module], nn.Module],
) -> None:
    if wrapped is compiled and copied is saved_and_loaded:
        pytest.skip("torch itself does not save what it has compiled")
    model = wrapped(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watched(root, model, optimizer)
    for _ in range(steps):
        step(model, optimizer)
        monitor.step()
    other = copied(model)
    monitor.enter_phase("eval")
    for _ in range(3):
        other(torch.randn(2, 8))
    assert page_in(root).phase == "eval"
    step(model, optimizer)
    monitor.step()
    assert page_in(root).state["phase_seconds"]["forward"] > 0
    assert monitor.enabled


def test_a_copy_of_a_watched_optimizer_enters_no_phase(root: Path) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watched(root, model, optimizer)
    other = copy.deepcopy(optimizer)
    monitor.enter_phase("eval")
    other.step()
    assert page_in(root).phase == "eval"
