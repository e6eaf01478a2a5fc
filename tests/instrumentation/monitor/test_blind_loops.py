"""What is not seen of a loop is said once, after its first steps, with the line to add."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lockstep
from lockstep_records.page.replicas import UNSEEN, unseen_in

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


@pytest.mark.parametrize(("kind", "is_unseen"), [("send_recv", True), ("all_reduce", False)])
def test_ranks_that_only_send_to_one_another_are_asked_for_their_stages(
    root: Path, kind: str, *, is_unseen: bool
) -> None:
    environment = ENVIRONMENT | {"WORLD_SIZE": "2"}
    monitor = lockstep.attach(root=root, environment=environment, rows=64)
    for _ in range(STEPS):
        monitor.enter_phase("forward")
        monitor.wait_ended(monitor.wait_begins(), kind)
        monitor.step(loss=1.0, tokens=1)
    monitor.close()
    assert (UNSEEN["stages"] in unseen_in(page_of(root).periodic)) is is_unseen


def test_the_same_objects_have_the_same_monitor_while_it_records(root: Path) -> None:
    model, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    monitor = watched(root, [model, other])
    assert watched(root, [model, other]) is monitor
    assert watched(root, [other, model]) is not monitor
    monitor.close()
    assert watched(root, [model, other]) is not monitor


@pytest.mark.parametrize(
    ("names", "coordinates", "mesh"),
    [
        (("dp_replicate", "dp_shard", "tp"), (1, 0, 3), {"dp": 1, "fsdp": 0, "tp": 3}),
        (None, (2,), {"fsdp": 2}),
        (None, (1, 2), {"dp": 1, "fsdp": 2}),
        (("spatial",), (3,), {"dp": 1}),
    ],
)
def test_the_coordinates_of_a_device_mesh_are_those_of_the_rank(
    root: Path, names: Any, coordinates: tuple[int, ...], mesh: dict[str, int]
) -> None:
    device_mesh: Any = SimpleNamespace(
        mesh_dim_names=names, ndim=len(coordinates), get_coordinate=lambda: coordinates
    )
    lockstep.attach(root=root, environment=ENVIRONMENT, rows=64, mesh=device_mesh).close()
    assert page_of(root).identity["mesh"] == mesh
