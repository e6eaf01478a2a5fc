"""What is not seen of a loop is said once, after its first steps, with the line to add."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from lockstep_records.page.unseen import UNSEEN, unseen_in

from ..rank_page import ENVIRONMENT, page_of
from ..strategies.watched import page_in, watched

STEPS = 45
Step = Callable[[lockstep.Monitor, Any], None]


def nothing(monitor: lockstep.Monitor, _model: Any) -> None:
    monitor.step()


def own_phases(monitor: lockstep.Monitor, _model: Any) -> None:
    monitor.enter_phase("forward")
    monitor.enter_phase("other")
    monitor.step(loss=1.0, tokens=5)


def idle(monitor: lockstep.Monitor, _model: Any) -> None:
    time.sleep(0.003)
    own_phases(monitor, None)


def idle_with_data(monitor: lockstep.Monitor, _model: Any) -> None:
    monitor.enter_phase("data")
    monitor.enter_phase("other")
    idle(monitor, None)


def trains(monitor: lockstep.Monitor, model: Any) -> None:
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    monitor.step(loss=loss, samples=2)


def never_runs(monitor: lockstep.Monitor, _model: Any) -> None:
    monitor.enter_phase("backward")
    monitor.step(loss=1.0, samples=2)


@pytest.mark.parametrize(
    ("step", "has_model", "names"),
    [
        (nothing, False, ["phases", "loss", "samples"]),
        (own_phases, False, []),
        (idle, False, ["data"]),
        (idle_with_data, False, ["work"]),
        (trains, True, []),
        (never_runs, True, ["models"]),
    ],
)
def test_what_is_not_seen_is_said_once_and_stays_in_the_page(
    step: Step, has_model: bool, names: list[str], root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Linear(4, 4) if has_model else None
    monitor = watched(root, model)
    with caplog.at_level(logging.INFO, logger="lockstep"):
        for _ in range(STEPS):
            step(monitor, model)
    monitor.close()
    unseen = [*unseen_in(page_in(root).periodic)]
    assert [line for _, line in unseen] == [UNSEEN[name].line for name in names]
    assert [r.getMessage() for r in caplog.records if "; add: " in r.getMessage()] == [
        *map(str, unseen)
    ]


def test_another_rank_keeps_in_its_page_what_rank_0_alone_says(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = ENVIRONMENT | {"RANK": "1", "WORLD_SIZE": "2"}
    monitor = lockstep.attach(root=root, environment=environment, rows=64, mesh={"pp": 1})
    for _ in range(STEPS):
        monitor.enter_phase("backward")
        monitor.step(tokens=1)
    monitor.close()
    assert [*unseen_in(page_of(root).periodic)] == [UNSEEN["waits"]]
    assert not [r for r in caplog.records if "; add: " in r.getMessage()]
