"""Optimizers inside wrappers that call no hooks: the one that is stepped in the end is watched."""

from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from lockstep_records.page.reader import read_rows

from ..rank_page import ENVIRONMENT, page_of


class OnlyAttributes:
    """As DeepSpeed's of ZeRO: no Optimizer of torch, and not iterable."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


class Unborn(torch.optim.Optimizer):
    """As torchft's: an Optimizer whose constructor never runs."""

    def __init__(self, optim: torch.optim.Optimizer) -> None:
        self.optim = optim

    @property
    def param_groups(self) -> Any:  # type: ignore[override]  # as theirs
        return self.optim.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as theirs
        self.optim.step(closure)


def plain(optimizer: torch.optim.Optimizer) -> Any:
    return optimizer


def nested(optimizer: torch.optim.Optimizer) -> Any:
    return OnlyAttributes(Unborn(optimizer))


def listed(optimizer: torch.optim.Optimizer) -> Any:
    return [OnlyAttributes(optimizer)]


@pytest.mark.parametrize("wrap", [plain, OnlyAttributes, Unborn, nested, listed])
def test_the_step_of_the_optimizer_inside_is_the_phase(wrap: Any, root: Path) -> None:
    model = torch.nn.Linear(4, 4)
    wrapped = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    monitor = lockstep.attach(model, wrapped, root=root, environment=ENVIRONMENT, rows=64)
    stepped = wrapped[0] if isinstance(wrapped, list) else wrapped
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        stepped.step()
        monitor.step()
    monitor.close()
    page = page_of(root)
    assert page.state["internal_errors"] == 0
    assert all(row["phase_seconds"]["optimizer"] > 0 for row in read_rows(page))
