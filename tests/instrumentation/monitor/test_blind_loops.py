"""A loop in which nothing can be seen says so, and which line would help; others say nothing."""

import logging
from pathlib import Path

import pytest
import torch

import lockstep

from ..rank_page import ENVIRONMENT

SENTENCE = "nothing inside the steps is seen: give lockstep.attach(model, optimizer)"


def attach(root: Path, model: torch.nn.Module | None = None) -> lockstep.Monitor:
    return lockstep.attach(model, root=root, environment=ENVIRONMENT, rows=64)


def num_logged(caplog: pytest.LogCaptureFixture) -> int:
    return sum(SENTENCE in record.getMessage() for record in caplog.records)


def test_steps_without_phases_are_said_once_and_first(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = attach(root)
    with caplog.at_level(logging.INFO, logger="lockstep"):
        for _ in range(200):
            monitor.step()
    monitor.close()
    assert num_logged(caplog) == 1
    assert SENTENCE in caplog.records[0].getMessage()


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "sync", "optimizer"])
def test_a_loop_that_enters_one_phase_of_its_work_is_left_alone(
    phase: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = attach(root)
    for _ in range(20):
        monitor.enter_phase(phase)
        monitor.enter_phase("other")
        monitor.step()
    monitor.close()
    assert num_logged(caplog) == 0


def test_a_loop_with_its_model_is_left_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(4, 4)
    monitor = attach(root, model)
    for _ in range(20):
        model(torch.ones(2, 4)).sum().backward()
        monitor.step()
    monitor.close()
    assert num_logged(caplog) == 0
